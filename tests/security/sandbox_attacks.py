"""Code that tries to break out of the Python sandbox, or to bring down the machine around it.

Each attack is run for real. It has succeeded where it prints ESCAPED, where something of the host's shows up in what it
gives back, or where the host has changed; `Host` looks for that. A name in braces stands for something of the host.

ATTACKS reach for the host, BOMBS for its resources, BLAMES try to look like a failure of the sandbox, and
NEIGHBOR_ATTACKS try to disturb another episode on the same server.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import socket
import subprocess
import sys
from collections.abc import Generator
from dataclasses import dataclass, field, replace
from pathlib import Path

from mcprl_market.python.programs import Failed, Limits, Outcome, Program, Step

__all__ = [
    "ATTACKS",
    "BLAMES",
    "BOMBS",
    "FORGE",
    "LIMITS",
    "MARK",
    "NEIGHBOR_ATTACKS",
    "PATIENT",
    "Host",
    "attacked_host",
    "program",
]

MARK = "ESCAPED"
# Small enough that all memory is taken before the processor time is: which limit ends a bomb must not depend on load.
LIMITS = Limits(cpu_s=1, deadline_s=3.0, memory_bytes=512 * 1024 * 1024)
# For all that ends by itself, or at another limit: on a busy machine that may take its time.
PATIENT = replace(LIMITS, cpu_s=60, deadline_s=60.0)
CANARY = "MCPRL_TEST_CANARY"

PRELUDE = """
import ctypes, errno, os, platform
libc = ctypes.CDLL(None, use_errno=True)
ARM = platform.machine() == "aarch64"
def call(x86, arm, *arguments):
    answer = libc.syscall(arm if ARM else x86, *arguments)
    return answer if answer >= 0 else -ctypes.get_errno()
def denied(what, answer):
    print("ESCAPED" if answer >= 0 else "denied", what, answer)
def refused(what, work):
    try:
        print("ESCAPED", what, str(work())[:300])
    except (OSError, ImportError, ValueError) as error:
        print("denied", what, error)
"""

# Code that writes to the pipe that results go through, whichever it is.
FORGE = """
import os
def write_to_pipes(message):
    for fd in range(3, 64):
        try:
            rest = message
            while rest: rest = rest[os.write(fd, rest):]
        except OSError: pass
def forge(report):
    write_to_pipes(len(report).to_bytes(4, 'big') + report)
    os._exit(0)
"""

_ATTACKS = r"""
## Files of the host
# reads the shadow file
refused('shadow', lambda: open('/etc/shadow').read())
# reads the users of the host
refused('passwd', lambda: open('/etc/passwd').read())
# reads a file that everybody may read
refused('canary', lambda: open('{canary_file}').read())
# lists root's home
refused('root', lambda: os.listdir('/root'))
# lists the checkout
refused('checkout', lambda: os.listdir('{checkout}'))
# imports mcprl
refused('mcprl', lambda: __import__('mcprl'))
# imports a package of the server
refused('mcp', lambda: __import__('mcp'))
# imports what the interpreter's own site-packages hold
refused('pip', lambda: __import__('pip'))
# looks for task files
import glob
found = [p for p in glob.glob('/**/*', recursive=True) if 'task' in os.path.basename(p) and p.endswith('.json')]
found += [p for p in glob.glob('/**/*mcprl*', recursive=True)]
print('ESCAPED' if found else 'nothing', found)
# lists the root folder
extra = set(os.listdir('/')) - {'tmp', 'python', 'packages', 'lib', 'lib64', 'dev', 'usr'}
print('ESCAPED' if extra else 'nothing', extra)
# climbs out of the working folder
refused('climb', lambda: open('../../../../../../etc/hostname').read())
# follows a symbolic link
os.symlink('{canary_file}', '/tmp/link')
refused('link', lambda: open('/tmp/link').read())
# makes a hard link to what is shown
refused('hard link', lambda: os.link('/python/bin/python', '/tmp/python'))
# finds its mount sources
refused('mountinfo', lambda: open('/proc/self/mountinfo').read())
refused('mounts', lambda: open('/etc/mtab').read())
# finds folders of the host in the compiled library
import json
print(json.__file__, os.__file__, os.getcwd())
# reads the host's name
print(platform.node(), os.uname().nodename)
## The environment of the server
# reads its environment
print(dict(os.environ))
# reads the environment of its parent
refused('environ', lambda: open(f'/proc/{{os.getppid()}}/environ').read())
# reads the environment in its memory
environ = ctypes.POINTER(ctypes.c_char_p).in_dll(libc, 'environ')
i = 0
while environ[i]:
    print(environ[i]); i += 1
## /proc
# lists the processes
refused('proc', lambda: os.listdir('/proc'))
# walks through the root of the first process
refused('root', lambda: os.listdir('/proc/1/root/root'))
# writes its own memory as a file
refused('mem', lambda: open('/proc/self/mem', 'r+b'))
# opens its descriptors by path
refused('fd', lambda: os.listdir('/proc/self/fd'))
# mounts a /proc
os.mkdir('/tmp/p')
denied('mount', call(165, 40, b'proc', b'/tmp/p', b'proc', 0, None))
## The network
# connects to a server on the host
import socket
refused('tcp', lambda: socket.create_connection(('127.0.0.1', {port}), timeout=1))
# connects over IPv6
import socket
refused('tcp6', lambda: socket.create_connection(('::1', {port}), timeout=1))
# sends a datagram
import socket
refused('udp', lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', ('127.0.0.1', {port})))
# connects to an abstract socket
import socket
refused('abstract', lambda: socket.socket(socket.AF_UNIX).connect('\x00{abstract}'))
# connects to a socket in a folder
import socket
refused('unix', lambda: socket.socket(socket.AF_UNIX).connect('{unix}'))
# opens a netlink socket
import socket
refused('netlink', lambda: socket.socket(socket.AF_NETLINK, socket.SOCK_RAW))
# opens a raw socket
import socket
refused('raw', lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, 1))
# opens a packet socket
import socket
refused('packet', lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW))
# opens a vsock
denied('vsock', call(41, 198, 40, 1, 0))
# opens a socket by number
denied('socket', call(41, 198, 2, 1, 0))
# makes a pair of sockets for the network
denied('pair', call(53, 199, 2, 1, 0, ctypes.create_string_buffer(8)))
# opens a socket through io_uring
denied('io_uring', call(425, 425, 8, ctypes.create_string_buffer(256)))
# listens for others
import socket
refused('listen', lambda: socket.create_server(('0.0.0.0', 0)))
# asks for a name
import socket
refused('name', lambda: socket.gethostbyname('example.com'))
## Other processes
# traces its parent
denied('ptrace', call(101, 117, 16, os.getppid(), 0, 0))
# lets itself be traced
denied('traceme', call(101, 117, 0, 0, 0, 0))
# reads the memory of another process
vector = ctypes.create_string_buffer(16)
denied('process_vm_readv', call(310, 270, {victim}, vector, 1, vector, 1, 0))
# kills a process of the host
refused('kill', lambda: os.kill({victim}, 9))
# kills its first process
refused('kill 1', lambda: os.kill(1, 9))
# kills everything it can
denied('kill', call(62, 129, -1, 9))
# kills itself as the machine would
denied('tgkill', call(234, 131, os.getpid(), libc.gettid(), 9))
# ends as if the machine had killed it
denied('exit_group', call(231, 94, 137 + 256))
denied('exit', call(60, 93, 137))
# opens a handle of a process
denied('pidfd_open', call(434, 434, 1, 0))
# takes a descriptor of another process
denied('pidfd_getfd', call(438, 438, 1, 0, 0))
# starts a program
import subprocess, sys
refused('program', lambda: subprocess.run([sys.executable, '-c', '']))
# becomes another program
refused('exec', lambda: os.execv('/python/bin/python', ['python', '-c', '']))
# becomes a program in memory
denied('memfd', call(319, 279, b'x', 0))
denied('execveat', call(322, 281, 0, b'', 0, 0, 0x1000))
# forks
refused('fork', lambda: os.fork() or os._exit(0))
# forks by number
denied('clone', call(56, 220, 17, 0, 0, 0, 0))
# forks with the newest call
denied('clone3', call(435, 435, ctypes.create_string_buffer(88), 88))
# starts a shell
print('ESCAPED' if os.system('true') == 0 else 'denied')
## Rights
# becomes root
refused('setuid', lambda: os.setuid(0))
refused('setresuid', lambda: os.setresuid(0, 0, 0))
# is root already
print('ESCAPED' if 0 in (os.getuid(), os.geteuid(), *os.getresuid(), *os.getgroups()) else 'no')
# takes capabilities
denied('capset', call(126, 91, ctypes.create_string_buffer(8), ctypes.create_string_buffer(24)))
# makes namespaces
denied('unshare', call(272, 97, 0x10000000))
denied('unshare', call(272, 97, 0x40020000))
# makes a namespace with a process
denied('clone', call(56, 220, 0x10000000 | 17, 0, 0, 0, 0))
# makes a namespace with a thread
denied('clone', call(56, 220, 0x10010900, 0, 0, 0, 0))
# enters a namespace
denied('setns', call(308, 268, 0, 0))
# mounts
os.mkdir('/tmp/m')
denied('mount', call(165, 40, b'tmpfs', b'/tmp/m', b'tmpfs', 0, None))
# mounts in the new way
denied('fsopen', call(430, 430, b'tmpfs', 0))
denied('open_tree', call(428, 428, -100, b'/', 1))
# unmounts what hides the packages
denied('umount2', call(166, 39, b'{site_packages}', 2))
# changes its root folder
denied('chroot', call(161, 51, b'/tmp'))
denied('pivot_root', call(155, 41, b'/tmp', b'/tmp'))
# raises its limits
import resource
limits = [resource.RLIMIT_CPU, resource.RLIMIT_AS, resource.RLIMIT_NPROC, resource.RLIMIT_NOFILE]
for limit in limits:
    refused('limit', lambda: resource.setrlimit(limit, (resource.getrlimit(limit)[1],) * 2))
# removes the filter
denied('seccomp', call(317, 277, 1, 0, None))
denied('prctl', libc.prctl(22, 0, 0, 0, 0))
# turns randomisation off
denied('personality', call(135, 92, 0x0040000))
## The kernel
# reads keys
denied('keyctl', call(250, 219, 0, -1, 1))
denied('add_key', call(248, 217, b'user', b'x', b'y', 1, -2))
# loads a program into the kernel
denied('bpf', call(321, 280, 0, ctypes.create_string_buffer(128), 128))
# watches the processor
denied('perf', call(298, 241, ctypes.create_string_buffer(128), 0, -1, -1, 0))
# handles page faults
denied('userfaultfd', call(323, 282, 0))
# loads a module
denied('module', call(175, 105, b'x', 1, b''))
denied('kexec', call(246, 104, 0, 0, 0, 0))
# restarts the machine
denied('reboot', call(169, 142, 0xfee1dead, 672274793, 0x1234567, 0))
# sets the clock
denied('clock', call(164, 170, ctypes.create_string_buffer(16), None))
# opens files by handle
denied('handle', call(304, 265, -100, ctypes.create_string_buffer(64), 0))
# shares memory beyond itself
denied('shmget', call(29, 194, 0, 1 << 20, 0o1600))
denied('msgget', call(68, 186, 0, 0o1600))
# watches files
denied('inotify', call(294, 26, 0))
denied('fanotify', call(300, 262, 0, 0))
# types into the terminal
import fcntl
for fd in range(3):
    refused('TIOCSTI', lambda: fcntl.ioctl(fd, 0x5412, b'x'))
refused('tty', lambda: open('/dev/tty'))
refused('linux console', lambda: fcntl.ioctl(0, 0x541C, b'\3'))
## Devices, and what is shown
# makes a device
refused('mknod', lambda: os.mknod('/tmp/sda', 0o060666, os.makedev(8, 0)))
# opens devices
for name in ('mem', 'kmsg', 'sda', 'vda', 'fuse', 'shm', 'pts'):
    refused(name, lambda: os.open('/dev/' + name, 0))
# writes to what is shown
for path in ('/python/x', '/packages/x', '/packages/numpy/x.py', '/lib/x', '/x', '/dev/x',
             '{site_packages}/x', os.__file__, '/python/bin/python', '/lib/libc.so.6', '/packages/pandas/core/api.py'):
    refused(path, lambda: open(path, 'ab'))
    refused(path, lambda: os.remove(path))
    refused(path, lambda: os.chmod(path, 0o777))
# changes devices
for name in ('null', 'zero', 'urandom'):
    path = '/dev/' + name
    refused('chmod', lambda: os.chmod(path, 0o666))
    refused('rename', lambda: os.rename(path, path + '2'))
# leaves a compiled trap behind
import json
refused('pyc', lambda: open(json.__cached__, 'wb'))
# runs a file with rights of its own
open('/tmp/su', 'wb').write(open('/python/bin/python', 'rb').read())
os.chmod('/tmp/su', 0o6777)
refused('su', lambda: os.execv('/tmp/su', ['su', '-c', 'print("ESCAPED")']))
## What the worker holds
# lists what is open
import stat
open_now = []
for fd in range(1024):
    try:
        open_now.append((fd, stat.S_ISFIFO(os.fstat(fd).st_mode)))
    except OSError:
        pass
print('ESCAPED' if len(open_now) != 4 or not all(fifo for _, fifo in open_now) else 'four pipes', open_now)
# reads the pipes it should write to
import fcntl
for fd in range(1, 200):
    try:
        fcntl.fcntl(fd, 4, os.O_NONBLOCK)
        print('ESCAPED', fd, os.read(fd, 10))
    except OSError:
        pass
# finds the next program on its input
refused('input', lambda: os.read(0, 10) or os.stat('/nothing'))
# looks for files of another run
print('ESCAPED' if os.listdir('/tmp') else 'empty', os.listdir('/tmp'))
open('/tmp/{secret}', 'w').write('x')
"""

_BOMBS = r"""
# loops for ever -> cpu deadline
while True: pass
# sleeps for ever -> deadline
import time
time.sleep(10**6)
# ignores every signal -> ended deadline
import signal
for number in range(1, 65):
    try: signal.signal(number, signal.SIG_IGN)
    except (OSError, ValueError): pass
signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65))
while True: pass
# waits for a lock that it holds -> deadline
import threading
l = threading.Lock()
l.acquire()
l.acquire()
# forks without end -> raised
import os
while True: os.fork()
# starts threads without end -> raised
import threading, time
while True: threading.Thread(target=time.sleep, args=(9999,)).start()
# burns all processors -> cpu deadline
import threading
def burn():
    while True: pass
for _ in range(8): threading.Thread(target=burn).start()
burn()
# takes all memory -> memory
x = []
while True: x.append(bytearray(10**8))
# takes all memory at once -> memory
x = bytearray(10**12)
# takes memory with numpy -> memory raised
np.ones(10**12)
# takes memory with a number -> memory raised
x = 1 << (10**12)
# maps memory in many ways -> memory raised
import mmap
x = []
while True: x.append(mmap.mmap(-1, 10**8))
# fills the disk -> raised
n = 0
while True:
    with open(f'/tmp/{n}', 'wb') as f: f.write(bytes(10**7))
    n += 1
# fills the disk with one file -> raised
f = open('/tmp/x', 'wb')
while True: f.write(bytes(10**6))
# makes a file with a hole -> raised
f = open('/tmp/x', 'wb')
f.truncate(10**15)
# makes files without end -> disk
n = 0
while True:
    open(f'/tmp/{n}', 'w').close()
    n += 1
# makes folders without end -> disk
import os
n = 0
while True:
    os.mkdir(f'/tmp/{n}')
    n += 1
# opens files without end -> raised
x = []
while True: x.append(open('/dev/null'))
# prints without end -> output
while True: print('x' * 1000)
# prints one endless line -> output
import sys
while True: sys.stdout.write('x')
# complains without end -> output
import sys
while True: print('x' * 1000, file=sys.stderr)
# reports without end -> result
import os
for fd in range(3, 200):
    try:
        while True: os.write(fd, b'\xff' * 65536)
    except OSError: pass
# gives an endless result -> result
'x' * 10**8
# gives a result that contains itself -> raised
x = []
x.append(x)
x
# gives a result nested without end -> raised
x = []
for _ in range(10**5): x = [x]
x
# calls itself without end -> raised
def f(): return f()
f()
# crashes the interpreter -> ended
import ctypes
ctypes.string_at(0)
# overflows the stack -> cpu ended memory raised
import sys, threading
sys.setrecursionlimit(10**9)
def f(): return f()
f()
# ends the interpreter -> ended
import os
os._exit(0)
# ends as if the machine had killed it -> ended
import os
os._exit(137)
# closes every pipe -> ended
import os
os.closerange(0, 1024)
# matches a pattern for ever -> cpu deadline
import re
re.match(r'(a+)+$', 'a' * 40 + 'b')
"""

# Each fails, and would like to be played again for it.
_BLAMES = r"""
## SIGKILL
# sends itself SIGKILL through a pipe
import fcntl, os, time
r, w = os.pipe()
fcntl.fcntl(r, fcntl.F_SETOWN, os.getpid())
fcntl.fcntl(r, 10, 9)
fcntl.fcntl(r, fcntl.F_SETFL, os.O_ASYNC)
os.write(w, b'x')
time.sleep(60)
# sends itself SIGKILL through a pipe, by thread
import fcntl, os, struct, time
r, w = os.pipe()
fcntl.fcntl(r, 15, struct.pack('ii', 0, os.getpid()))
fcntl.fcntl(r, 10, 9)
fcntl.fcntl(r, fcntl.F_SETFL, os.O_ASYNC)
os.write(w, b'x')
time.sleep(60)
# sends itself SIGKILL through a lease
import fcntl, os, time
open('/tmp/x', 'w').close()
f = os.open('/tmp/x', os.O_RDONLY)
fcntl.fcntl(f, 10, 9)
fcntl.fcntl(f, fcntl.F_SETLEASE, fcntl.F_RDLCK)
os.open('/tmp/x', os.O_WRONLY | os.O_NONBLOCK)
time.sleep(60)
# sends itself SIGKILL through a watched folder
import fcntl, os, time
f = os.open('/tmp', os.O_RDONLY)
fcntl.fcntl(f, 10, 9)
fcntl.fcntl(f, fcntl.F_NOTIFY, fcntl.DN_CREATE)
open('/tmp/x', 'w').close()
time.sleep(60)
# sends itself SIGKILL through an ioctl
import array, fcntl, os, time
r, w = os.pipe()
fcntl.ioctl(r, 0x8901, array.array('i', [os.getpid()]))
fcntl.ioctl(r, 0x5452, array.array('i', [1]))
os.write(w, b'x')
time.sleep(60)
# is killed for ignoring the end of its processor time
import signal
signal.signal(signal.SIGXCPU, signal.SIG_IGN)
while True: pass
# is killed for blocking every signal in many threads
import signal, threading
signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65))
def burn():
    while True: pass
for _ in range(4): threading.Thread(target=burn).start()
burn()
# ends with the status of SIGKILL
import os
os._exit(137)
# ends with a status that is cut to that of SIGKILL
import ctypes
ctypes.CDLL(None)._exit(137 + 512)
# takes all memory at once and locks it
import ctypes
ctypes.CDLL(None).mlockall(3)
x = [bytearray(10**7) for _ in range(10**6)]
# takes memory in small pieces until nothing works
x = []
try:
    while True: x.append(bytearray(10**6))
except MemoryError:
    try:
        while True: x.append(b'x' * 999)
    except MemoryError: pass
x.copy() * 100
## Other signals and ends
# stops itself
import signal
signal.raise_signal(signal.SIGSTOP)
# sends every signal to the first process, then ends
import ctypes, os, platform
number = 131 if platform.machine() == 'aarch64' else 234
for n in range(1, 65): ctypes.CDLL(None).syscall(number, 1, 1, n)
os._exit(7)
# sends itself every signal
import signal, os
for n in range(1, 65):
    try: signal.signal(n, lambda *_: None)
    except (OSError, ValueError): pass
for n in [*range(1, 19), *range(20, 65)]:
    try: signal.raise_signal(n)
    except OSError: pass
os.abort()
# signals its group
import os, signal
os.killpg(0, signal.SIGTERM)
# sends itself a real-time signal
import ctypes, os, platform
ctypes.CDLL(None).syscall(131 if platform.machine() == 'aarch64' else 234, os.getpid(), os.getpid(), 40)
# lets a timer end it
import signal, time
signal.setitimer(signal.ITIMER_REAL, 0.01)
time.sleep(60)
# writes beyond the largest file and takes the signal
import os, signal
signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
os.pwrite(os.open('/tmp/x', os.O_CREAT | os.O_WRONLY), b'x', 10**12)
# writes to a closed pipe and takes the signal
import os, signal
signal.signal(signal.SIGPIPE, signal.SIG_DFL)
r, w = os.pipe()
os.close(r)
os.write(w, b'x')
# crashes with its handler away
import ctypes, signal
signal.signal(signal.SIGSEGV, signal.SIG_IGN)
ctypes.string_at(0)
# makes a call that the filter ends it for
import ctypes, mmap, platform, os
if platform.machine() == 'x86_64':
    m = mmap.mmap(-1, 4096, prot=7)
    m.write(b'\xb8\x01\x00\x00\x00\xcd\x80\xc3')
    ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(m)))()
os._exit(5)
# ends with a status that bubblewrap could have
import os
os._exit(255)
# traces its first process, then ends
import ctypes, os
ctypes.CDLL(None).ptrace(16, 1, 0, 0)
os._exit(4)
# forks, then ends
import os
try: os.fork()
finally: os._exit(1)
# leaves threads and exit handlers that never end
import atexit, threading, time
def burn():
    while True: time.sleep(0.01)
threading.Thread(target=burn).start()
atexit.register(burn)
raise SystemExit(1)
## The worker around it
# closes every pipe
import os
os.closerange(0, 1024)
# closes every pipe and sleeps
import os, time
os.closerange(0, 1024)
time.sleep(60)
# closes where reports go, then fails
import os
os.closerange(3, 1024)
1 / 0
# closes the streams of the interpreter
import sys
sys.__stdout__.close()
sys.__stderr__.close()
# replaces the streams of the interpreter
import sys
sys.__stdout__ = sys.__stderr__ = 5
# deletes its working folder
import os
os.mkdir('/tmp/x')
os.chdir('/tmp/x')
os.rmdir('/tmp/x')
open('y', 'w')
# locks itself out of its folder
import os
os.mkdir('/tmp/x')
os.chmod('/tmp/x', 0)
os.listdir('/tmp/x')
# fills its folder
with open('/tmp/x', 'wb') as file:
    while True: file.write(bytes(10**6))
# raises an error that cannot be told
class Untold(Exception):
    def __str__(self): raise self
raise Untold
# raises an error of surrogates
raise ValueError('\ud800' * 100)
# raises an error without end
raise ValueError('x' * 10**7)
## Reports
# has a result nested 64 deep
x = []
for _ in range(63): x = [x]
x
# has a result nested 230 deep
x = 0
for _ in range(230): x = {'a': x}
x
# has a result nested 400 deep
x = []
for _ in range(400): x = [x]
x
# has a result nested 900 deep
x = []
for _ in range(900): x = (x,)
x
# has a result that contains itself
x = {}
x['x'] = x
x
# has a number of too many digits
10 ** 4300
# has a result of 10 MB
list(range(2 * 10**6))
# forges a report nested 400 deep
forge(b'{"value": ' + b'[' * 400 + b']' * 400 + b'}')
# forges a report nested without end
forge(b'{"value": ' + b'[' * 10**6)
# forges an error of surrogates
forge(b'{"error": {"type": "\\ud800", "message": "\\udfff", "step": "\\ud800", "line": 1}}')
# forges an error in a line that is not there
forge(b'{"error": {"type": "E", "message": "m", "step": "code", "line": ' + b'9' * 4000 + b'}}')
# forges a report that is not UTF-8
forge(b'{"value": "\xff\xfe"}')
# forges a number of too many digits
forge(b'{"value": ' + b'9' * 10**6 + b'}')
# forges an empty report
forge(b'')
# forges the word of a lost sandbox
forge(b'{"lost": true, "limit": "none", "error": "E-SAND-010"}')
# forges a report of 4 GB and waits
import time
write_to_pipes(b'\xff\xff\xff\xff')
time.sleep(60)
# forges half a report and ends
write_to_pipes(b'\x00\x00\x10\x00{')
os._exit(0)
# forges half a report and waits
import time
write_to_pipes(b'\x00\x00\x10\x00{')
time.sleep(60)
# prints garbage beyond the limit
import os
while True: os.write(1, b'\xff\x00\xed\xa0\x80\r\x85' * 9999)
# prints what ends lines, then fails
print('a\u2028b\u2029c\x85d\x0be\x0cf\x1cg\x1dh\x1ei\rj\r\nk\x00l\x7f\ufeff\uffff\U0010ffff')
1 / 0
"""

_NEIGHBOR_ATTACKS = r"""
## Forged reports
# forges a surrogate
forge(b'{"value": "\\ud800"}')
# forges a surrogate as bytes
forge(b'{"value": "\xed\xa0\x80"}')
# forges a surrogate as a key
forge(b'{"value": {"\\udfff": 1}}')
# forges a surrogate as what is shown
forge(b'{"value": 1, "shown": "\\ud800"}')
# forges a surrogate in an error
forge(b'{"error": {"type": "\\ud800", "message": "\\ud800", "step": "code", "line": 1}}')
# forges deep values
forge(b'{"value": ' + b'[' * 240 + b']' * 240 + b'}')
# forges half a million values
forge(b'{"value": [' + b'0,' * 500_000 + b'0]}')
# forges a float of a million digits
forge(b'{"value": 0.' + b'1' * 1_000_000 + b'}')
# forges large numbers
forge(b'{"value": [' + b','.join([b'9' * 4200] * 240) + b']}')
# forges numbers that JSON has no form for
forge(b'{"value": [NaN, Infinity, -Infinity, 1e999]}')
# rewrites the worker that reports
import sys
frame = sys._getframe()
while frame.f_back: frame = frame.f_back
for name in ('report_of_value', '_json'): frame.f_globals[name] = lambda *_: '{"value": "\\ud800"}'
1
# prints surrogates and control characters to the limit
import os
os.write(1, b'\xed\xa0\x80\x00' * 262_000)
os.write(2, b'\x1b\r\x85' * 349_000)
## Resources
# burns all processors
import threading
def burn():
    while True: pass
for _ in range(8): threading.Thread(target=burn).start()
burn()
# ignores its processor time
import signal
signal.signal(signal.SIGXCPU, signal.SIG_IGN)
while True: pass
# takes all memory and keeps it
import time
x = []
try:
    while True: x.append(bytearray(10**7))
except MemoryError: time.sleep(1)
# fills its folder and keeps it
import time
try:
    with open('/tmp/x', 'wb') as f:
        while True: f.write(bytes(10**6))
except OSError: time.sleep(1)
# makes files without end
n = 0
while True:
    open(f'/tmp/{n}', 'w').close()
    n += 1
# starts threads without end
import threading, time
try:
    while True: threading.Thread(target=time.sleep, args=(1,)).start()
except RuntimeError: time.sleep(1)
# opens files and pipes without end
import os, time
try:
    while True: os.pipe()
except OSError: time.sleep(1)
# takes all memory for pipes
import fcntl, os, time
try:
    while True: fcntl.fcntl(os.pipe()[1], 1031, 1 << 20)
except OSError: time.sleep(1)
# prints without end
while True: print('x' * 1000)
# reports without end
while True: write_to_pipes(b'\xff' * 65536)
## What stays behind
# leaves processes behind
import os, time
for _ in range(5):
    try:
        if os.fork() == 0:
            os.setsid()
            time.sleep(1)
    except OSError: pass
# leaves threads behind
import threading, time
def stay():
    while True: time.sleep(0.01)
for _ in range(5): threading.Thread(target=stay).start()
# leaves a file behind
open('/tmp/left', 'w').write('left')
# leaves a trap in a module
import builtins, json
builtins.sum = lambda _: -1
json.loads = None
# leaves something in the stored results
context['prices'] = [0]
context['planted'] = 1
# holds locks on shared files
import fcntl, os, time
for path in ('/python/bin/python', os.__file__, '/dev/null'):
    try: fcntl.flock(os.open(path, os.O_RDONLY), fcntl.LOCK_EX)
    except OSError: pass
time.sleep(1)
# takes leases on shared files
import fcntl, os, time
for path in ('/python/bin/python', os.__file__):
    try: fcntl.fcntl(os.open(path, os.O_RDONLY), fcntl.F_SETLEASE, fcntl.F_RDLCK)
    except OSError: pass
time.sleep(1)
# leaves a mark in the times of devices
import os
for name in ('null', 'zero', 'urandom'):
    try: os.utime('/dev/' + name)
    except OSError: pass
## Signals
# signals everything it can name
import os, signal
for pid in [*range(-1, 100), *range(-100, -1)]:
    for number in (signal.SIGKILL, signal.SIGSTOP, signal.SIGTERM):
        try: pid == os.getpid() or os.kill(pid, number)
        except OSError: pass
# has a pipe signal everything it can name
import fcntl, os
r, w = os.pipe()
for pid in [*range(1, 2), *range(3, 100), -1]:
    try:
        fcntl.fcntl(r, fcntl.F_SETOWN, pid)
        fcntl.fcntl(r, 10, 9)
        fcntl.fcntl(r, fcntl.F_SETFL, os.O_ASYNC)
        os.write(w, b'x')
    except OSError: pass
# is killed again and again
import os
os._exit(137)
# traces everything it can name
import ctypes
for pid in range(1, 100): ctypes.CDLL(None).ptrace(16, pid, 0, 0)
# stops itself
import signal
signal.raise_signal(signal.SIGSTOP)
"""


def _by_name(text: str) -> dict[str, str]:
    """Codes by the comments that they stand under; a double one heads a chapter."""
    parts = re.split(r"^# (.*)$", re.sub(r"^## .*$", "", text, flags=re.MULTILINE), flags=re.MULTILINE)
    return {name: code.strip() for name, code in zip(parts[1::2], parts[2::2], strict=True)}


def _with_forge(code: str) -> str:
    return FORGE + code if "forge(" in code or "write_to_pipes(" in code else code


ATTACKS = _by_name(_ATTACKS)
"""Each must reach nothing."""
BOMBS = {
    name.partition(" -> ")[0]: (code, frozenset(name.partition(" -> ")[2].split()))
    for name, code in _by_name(_BOMBS).items()
}
"""Each must end in one of these kinds of failure."""
BLAMES = {name: _with_forge(code) for name, code in _by_name(_BLAMES).items()}
"""Each must end, within its time limit, in a failure that is its own."""
NEIGHBOR_ATTACKS = {name: _with_forge(code) for name, code in _by_name(_NEIGHBOR_ATTACKS).items()}
"""Another episode on the same server must get right answers in time while each of these runs, and after."""


def program(code: str, *, prelude: str = "") -> Program:
    return Program(steps=(Step(name="code", code=prelude + code),), names={"data": None, "context": {}})


@dataclass
class Host:
    """What an attack could reach or harm, and what of that it did."""

    folder: Path
    secret: str = field(default_factory=lambda: secrets.token_hex(12))
    listeners: list[socket.socket] = field(default_factory=list[socket.socket])
    victim: subprocess.Popen[bytes] | None = None

    def program(self, attack: str) -> Program:
        assert self.victim is not None
        places = {
            "canary_file": self.folder / "canary.txt",
            "checkout": Path(__file__).resolve().parents[2],
            "port": self.listeners[0].getsockname()[1],
            "abstract": self.secret,
            "unix": self.folder / "socket",
            "victim": self.victim.pid,
            "secret": f"left-{os.getpid()}",
            "site_packages": f"/python/{sys.platlibdir}/python3.{sys.version_info.minor}/site-packages",
        }
        code = ATTACKS[attack]
        for name, value in places.items():
            code = code.replace("{" + name + "}", str(value))
        return program(code.replace("{{", "{").replace("}}", "}"), prelude=PRELUDE)

    def harm(self, outcome: Outcome) -> list[str]:
        """What the attack achieved, in words; nothing where it failed."""
        assert self.victim is not None
        told = [outcome.stdout, outcome.message] if isinstance(outcome, Failed) else []
        told += (
            []
            if isinstance(outcome, Failed)
            else [outcome.stdout, outcome.stderr, str(outcome.value), outcome.shown or ""]
        )
        text = "\n".join(told)
        found = [line for line in text.splitlines() if MARK in line]
        found += ["a secret of the host is in what it gave back"] if self.secret in text else []
        found += ["the name of the host is in what it gave back"] if socket.gethostname() in text.split() else []
        found += (
            ["a folder of the host is in what it gave back"] if sys.prefix in text or sys.base_prefix in text else []
        )
        found += ["a process of the host has ended"] if self.victim.poll() is not None else []
        found += ["the file has changed"] if (self.folder / "canary.txt").read_text() != self.secret else []
        for listener in self.listeners:
            with contextlib.suppress(BlockingIOError):
                listener.accept()
                found.append("a server of the host was reached")
        return found


@contextlib.contextmanager
def attacked_host(folder: Path) -> Generator[Host]:
    """A host with a secret in a file and in the environment, listening servers, and a process to kill."""
    host = Host(folder)
    (folder / "canary.txt").write_text(host.secret)
    (folder / "canary.txt").chmod(0o666)
    for family, address in (
        (socket.AF_INET, ("127.0.0.1", 0)),
        (socket.AF_UNIX, f"\0{host.secret}"),
        (socket.AF_UNIX, str(folder / "socket")),
    ):
        listener = socket.socket(family)
        listener.bind(address)
        listener.listen()
        listener.setblocking(False)
        host.listeners.append(listener)
    host.victim = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE)
    os.environ[CANARY] = host.secret
    try:
        yield host
    finally:
        del os.environ[CANARY]
        host.victim.kill()
        host.victim.communicate()
        for listener in host.listeners:
            listener.close()
