"""The widgets of the train form and of the policy form."""
