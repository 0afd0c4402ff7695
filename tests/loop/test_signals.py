"""Signals and closed pipes: what a user's Ctrl-C and `| head` do to commands."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading

import pytest

from hpcgnn.loop.launch import EXIT_INTERRUPTED, EXIT_REQUEUE, StopRequest

SMALL = [
    "--data.synthetic_events=600", "--train.batch_size=50", "--memory.dim=4", "--model.time_dim=4",
    "--model.hidden=4", "--comm.threads=1", "--comm.device=cpu",
]  # fmt: skip


@pytest.fixture
def heeded():
    """Interrupts are heeded, as in a command that no shell started in the background."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.serial
@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGTERM, signal.SIGINT])
def test_a_signal_is_remembered(heeded, number):
    """Also for other threads; the old handler is back afterwards."""
    before, seen = signal.getsignal(number), []
    with StopRequest() as stop:
        assert not stop.requested
        assert not stop.is_leaving()
        os.kill(os.getpid(), number)
        assert stop.requested
        thread = threading.Thread(target=lambda: seen.append(stop.is_leaving()))
        thread.start()
        thread.join()
    assert seen == [True]
    assert signal.getsignal(number) == before


@pytest.mark.serial
def test_a_second_interrupt_is_not_waited_for(heeded):
    with StopRequest() as stop:
        os.kill(os.getpid(), signal.SIGINT)
        assert stop.requested
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.serial
def test_an_ignored_interrupt_stays_ignored():
    """As of commands that a shell starts in the background."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with StopRequest() as stop:
            os.kill(os.getpid(), signal.SIGINT)
            assert not stop.requested
        assert signal.getsignal(signal.SIGINT) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.mark.serial
def test_a_signal_is_known_before_the_main_thread_looks():
    """It may be within a kernel, or an exchange that waits for a rank which has left."""
    with StopRequest() as stop:
        os.write(stop._pipe[1], bytes([signal.SIGTERM]))  # what Python's own handler does at once
        assert stop.is_leaving()
        assert not stop.requested


@pytest.mark.serial
def test_another_thread_trains_without_signals():
    """Python lets no other thread than the main one handle them."""
    before, seen = signal.getsignal(signal.SIGTERM), []

    def enter() -> None:
        with StopRequest() as stop:
            seen.append((stop.requested, stop.is_leaving()))

    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    assert seen == [(False, False)]
    assert signal.getsignal(signal.SIGTERM) == before


def heed_interrupts() -> None:
    """Tests may run in the background, where SIGINT is ignored."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def start(*arguments, **options) -> subprocess.Popen:
    """A command whose output is read line by line."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    command = [sys.executable, "-m", *map(str, arguments)]
    return subprocess.Popen(command, preexec_fn=heed_interrupts, **pipes, **options)


@pytest.mark.launcher
def test_interrupt_of_one_process(tmp_path):
    """A checkpoint, the message and 75; --resume continues."""
    run = tmp_path / "run"
    with start(
        "hpcgnn.train", "--output.dir", run, "--train.epochs=2000", "--train.early_stopping_patience=0", *SMALL
    ) as process:
        while "epoch 0" not in (line := process.stdout.readline()):
            assert line
        process.send_signal(signal.SIGINT)
        printed, errors = process.communicate(timeout=300)
    assert process.returncode == EXIT_REQUEUE, (printed, errors)
    assert "stop requested: writing a checkpoint" in printed
    assert "continue with --resume" in printed
    assert errors == ""
    with start("hpcgnn.train", "--resume", run) as process:
        while "resumed from step-" not in (line := process.stdout.readline()):
            assert line
        process.send_signal(signal.SIGTERM)
        assert process.wait(300) == EXIT_REQUEUE


@pytest.mark.launcher
def test_interrupt_of_a_command_that_does_not_train(tmp_path):
    """One word, no traceback."""
    program = (
        "import signal, sys; from hpcgnn.loop import launch; "
        "sys.exit(launch.run(lambda *_: signal.raise_signal(signal.SIGINT), []))"
    )
    command = [sys.executable, "-c", program]
    ended = subprocess.run(
        command, preexec_fn=heed_interrupts, capture_output=True, text=True, timeout=300, check=False
    )
    assert (ended.returncode, ended.stderr) == (EXIT_INTERRUPTED, "interrupted\n")


@pytest.mark.launcher
@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("command", [["hpcgnn.info"], ["hpcgnn", "--help"], ["hpcgnn.train", "--help"]])
def test_output_that_nobody_reads(command, unbuffered):
    """Nothing is said of it."""
    with start(*command, env=os.environ | {"PYTHONUNBUFFERED": unbuffered}) as process:
        process.stdout.close()
        assert process.stderr.read() == ""


@pytest.mark.launcher
def test_training_goes_on_without_a_reader(tmp_path):
    """To its end; the log file has all lines."""
    run = tmp_path / "run"
    with start("hpcgnn.train", "--output.dir", run, "--train.epochs=1", *SMALL) as process:
        process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == ""
    assert process.returncode == 0
    assert (run / "finished").exists()
    assert "results in" in (run / "log" / "rank-0.log").read_text()
