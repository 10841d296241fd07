"""`spade_server.py FOLDER`: an XMPP server on loopback. It prints its port when it is ready.

pyjabber would also listen on the machine's own address, open an administration page on port 9090 and write certificates
into its own package; it has no options against these, so its parts are replaced.
"""

import asyncio
import shutil
import socket
import sys
from pathlib import Path

import pyjabber
import uvloop
from loguru import logger
from pyjabber import server as jabber
from pyjabber.server_parameters import Parameters


def free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


async def serve(folder: Path) -> None:
    for name in ("ca_cert.pem", "ca_key.pem"):
        shutil.copy(Path(pyjabber.__file__).parent / "network" / "certs" / name, folder)
    client_port, server_port = free_ports(2)
    server = jabber.Server(
        Parameters(
            host="localhost",
            client_port=client_port,
            server_port=server_port,
            database_in_memory=True,
            cert_path=str(folder),
        )
    )
    server._http_server = None
    task = asyncio.create_task(server.start())
    await server.ready.wait()
    print(client_port, flush=True)
    await task


logger.remove()
jabber.setup_query_local_ip = lambda: None
uvloop.run(serve(Path(sys.argv[1])))
