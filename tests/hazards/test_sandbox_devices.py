"""G7, G13, G14: network, shared memory, terminals, temporary files as programs expect them."""

from __future__ import annotations

import pytest

from minisandbox.sandbox import Sandbox
from minisandbox.sandbox.rootfs import MOST_TERMINALS

SCRIPTS = {
    "127.0.0.1": "import socket; socket.create_server(('127.0.0.1', 0))",
    "::1": "import socket; socket.create_server(('::1', 0), family=socket.AF_INET6)",
    "own name": "import socket; socket.gethostbyname(socket.gethostname())",
    "localhost": """
import http.server, threading, urllib.request
server = http.server.HTTPServer(('localhost', 0), http.server.SimpleHTTPRequestHandler)
threading.Thread(target=server.serve_forever, daemon=True).start()
urllib.request.urlopen(f'http://localhost:{server.server_port}/').read()
""",
    "no way out": """
import socket
try: socket.create_connection(('192.0.2.1', 80), 5)
except OSError as error: assert 'unreachable' in str(error), error
else: raise SystemExit(1)
""",
    "multiprocessing": """
import multiprocessing
if __name__ == '__main__':
    with multiprocessing.Pool(2) as pool: assert pool.map(abs, [-1, -2]) == [1, 2]
    multiprocessing.Lock(), multiprocessing.Semaphore(), multiprocessing.Queue()
""",
    "shared memory": """
from multiprocessing import shared_memory
block = shared_memory.SharedMemory(create=True, size=200 << 20)
block.buf[-1] = 1; block.close(); block.unlink()
""",
    "named semaphores": "import threading, _multiprocessing",
    "pty.spawn": "import pty; raise SystemExit(pty.spawn('true'))",
    "openpty": "import os; m, s = os.openpty(); os.ttyname(s)",
    "temporary files": "import tempfile; tempfile.NamedTemporaryFile(); tempfile.mkdtemp()",
    "threads": "import threading; t = threading.Thread(target=print); t.start(); t.join()",
    "random": "import os; os.urandom(8); open('/dev/random', 'rb').read(1)",
    "many files": "files = [open('/dev/null') for _ in range(500)]",
    "unix sockets": "import socket; socket.socket(socket.AF_UNIX).bind('/tmp/socket')",
    "users": "import pwd, grp; pwd.getpwuid(0); pwd.getpwnam('nobody'); grp.getgrnam('tty')",
    "certificates": "import ssl; ssl.create_default_context()",
    "message queues": "import os; os.stat('/dev/mqueue')",
}


@pytest.mark.parametrize("name", SCRIPTS)
def test_python_program(box: Sandbox, name: str) -> None:
    box.write_file("/tmp/program.py", SCRIPTS[name])
    result = box.run(["python3", "/tmp/program.py"], timeout=50)
    assert result.exit_code == 0, result.text
    box.run("rm -f /tmp/socket")


COMMANDS = [
    "test -c /dev/null && echo x > /dev/null",
    "script -qc true /dev/null",
    '[ "$(stat -c %a /tmp)" = 1777 ] && [ "$(stat -c %a /dev/shm)" = 1777 ]',
    "getent hosts localhost && getent hosts testbed",
    "test -w /dev/tty || true; [ -L /dev/fd ] && cat <(echo x)",
    "mkfifo /tmp/f && rm /tmp/f",
    "git init -q /root/g && git -C /root/g status && rm -r /root/g",
    "sort -S 1M --parallel=2 /etc/passwd >/dev/null",
    "nproc",
    "df / >/dev/null && df /dev/shm | grep -q tmpfs",
    'date && [ -n "$(date +%Z)" ]',
]


@pytest.mark.parametrize("script", COMMANDS)
def test_shell_command(box: Sandbox, script: str) -> None:
    result = box.run(script)
    assert result.exit_code == 0, result.text


TERMINALS = """
import os
kept = []
try:
    while len(kept) < 1000: kept.append(os.open('/dev/ptmx', os.O_RDWR))
except OSError: pass
print(len(kept), flush=True)
"""


def test_no_sandbox_takes_the_terminals_of_others(box: Sandbox) -> None:
    result = box.run(["python3", "-c", TERMINALS])
    assert result.stdout == b"%d\n" % MOST_TERMINALS
    assert box.run("script -qc true /dev/null").exit_code == 0


def test_empty_files_in_dev_are_few(box: Sandbox) -> None:
    assert int(box.run("df --output=itotal /dev | tail -1").stdout) <= 2048
