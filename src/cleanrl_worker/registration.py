"""Best-effort registration with the daemon. The handshake that counts is the journal's first event."""

from __future__ import annotations

import os
import secrets
import threading

from mosaic import __version__

TOKEN_VARIABLE = "MOSAIC_TOKEN"
REGISTRATION_DELAY_S = 5.0
"""Importing grpc costs a tenth of a second of training and 20 MB; a shorter run never pays for it."""
_RPC_TIMEOUT_S = 3.0


class Registration(threading.Thread):
    """Registers the run after a delay if it still runs. A target that is gone or not our daemon is ignored."""

    def __init__(
        self, target: str, run_id: str, capabilities: tuple[str, ...], delay_s: float = REGISTRATION_DELAY_S
    ) -> None:
        super().__init__(name="registration", daemon=True)
        self._target = target
        self._run_id = run_id
        self._capabilities = capabilities
        self._delay_s = delay_s
        self._token = os.environ.get(TOKEN_VARIABLE, "")
        self._end_requested = threading.Event()

    def cancel(self) -> None:
        self._end_requested.set()

    def run(self) -> None:
        if not self._token or self._end_requested.wait(self._delay_s):
            return
        try:
            self._register()
        except Exception:
            # Registration is optional: whatever a stale target does, training continues.
            return

    def _register(self) -> None:
        import grpc

        from mosaic.common.auth_proof import PROOF_KEY, TOKEN_KEY, compute_proof, constant_time_equals
        from mosaic.contracts import trainer_pb2 as pb
        from mosaic.contracts.trainer_pb2_grpc import TrainerStub

        nonce = secrets.token_hex(16)
        with grpc.insecure_channel(self._target, options=(("grpc.enable_http_proxy", 0),)) as channel:
            stub = TrainerStub(channel)
            reply = stub.Identify(
                pb.IdentifyRequest(nonce=nonce),
                metadata=((PROOF_KEY, compute_proof(self._token, "client", nonce)),),
                timeout=_RPC_TIMEOUT_S,
            )
            if not constant_time_equals(reply.proof, compute_proof(self._token, "server", nonce)):
                return  # another program listens there now and must not get the token
            stub.RegisterWorker(
                pb.RegisterRequest(
                    run=self._run_id,
                    worker="cleanrl",
                    version=__version__,
                    pid=os.getpid(),
                    capabilities=self._capabilities,
                ),
                metadata=((TOKEN_KEY, self._token),),
                timeout=_RPC_TIMEOUT_S,
            )
