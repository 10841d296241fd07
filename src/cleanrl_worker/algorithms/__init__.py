"""One file an algorithm, each with the same public names: Config, Agent, check, train, load_policy, state_dict_of."""
