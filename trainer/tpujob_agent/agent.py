"""The agent's loop: obeys the coordinator, watches the trainer, never blocks."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import socket
import sys
import time
import uuid

from tpujob_agent import processes, protocol, runs
from tpujob_agent.child import Start
from tpujob_agent.command import Kind, Program
from tpujob_agent.handshake import AgentSide
from tpujob_agent.launcher import Launcher
from tpujob_agent.leaving import AWAY_S, Departure
from tpujob_agent.log import log, surviving
from tpujob_agent.loop import turn
from tpujob_agent.output import Output
from tpujob_agent.protocol import ProcessState, Report
from tpujob_agent.settings import Settings
from tpujob_agent.stalls import Stalls
from tpujob_agent.stream import Stream
from tpujob_agent.trainer import Exit, Trainer, now_ms, open_record, record_path
from tpujob_agent.wire import report_interval_s

#: How often the record is read while a trainer runs; about 10 µs each.
LOOK_INTERVAL_S = 0.05
#: Exit code of a process that SIGTERM ended; never 0, which would complete the pod.
TERMINATED = 128 + signal.SIGTERM
#: A refused agent asks again after this long: the coordinator may be a newer one by then.
REFUSED_WAIT_S = 5.0
#: How long the last words may take on the way out.
GOODBYE_S = 1.0


_Order = protocol.Save | protocol.SaveEvery | protocol.Stacks | protocol.Excuse
_ORDERS = (protocol.Save, protocol.SaveEvery, protocol.Stacks, protocol.Excuse)


class Agent:
    """Runs one pod's trainers, one generation after the other."""

    def __init__(self, settings: Settings, program: Program) -> None:
        self._settings = settings
        self._incarnation = uuid.uuid4().hex
        self._newest = 0  # generation
        self._next_run: protocol.Run | None = None
        self._trainer: Trainer | None = None
        self._exit_code: int | None = None
        self._told_to_leave = False
        self._departure: Departure | None = None
        self._orphan: Trainer | None = None  # its fork server has died
        self._reported: tuple[object, ...] = ()
        self._report_at = 0.0
        self._refusal = ""
        self._connection_problem = ""
        self._signals, self._wake = socket.socketpair()
        self._signals.setblocking(False)
        self._wake.setblocking(False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._signals, selectors.EVENT_READ, self._on_wake)
        self._stream = Stream(settings.host, settings.port, self._handshake, self._wake_up)
        self._launcher = self._launch(program)

    # ---- loop

    def run(self) -> int:
        """Serve until the coordinator or a signal says stop; returns the exit code."""
        signal.signal(signal.SIGCHLD, lambda *_: None)
        for number in (signal.SIGTERM, signal.SIGINT):
            # A handler runs between any two bytecodes: it may set a flag and no more.
            signal.signal(number, lambda *_: setattr(self, "_told_to_leave", True))
        signal.set_wakeup_fd(self._wake.fileno(), warn_on_full_buffer=False)
        try:
            while not self._is_done():
                self._once()
            return self._say_goodbye()
        finally:
            self._launcher.close()
            record_path(self._settings.run_dir, self._settings.pod).unlink(missing_ok=True)

    def _is_done(self) -> bool:
        is_alive = self._trainer is not None and self._trainer.is_alive
        return self._exit_code is not None and not is_alive

    def _once(self) -> None:
        turn(self._selector, self._timeout_s())
        self._reap()
        if self._told_to_leave and self._departure is None:
            self._leave()
        if self._trainer:
            self._trainer.output.flush()
        if self._stream.connect():
            self._listen()
        self._forget_closed()
        self._log_connection()
        self._report_if_due()

    def _timeout_s(self) -> float:
        trainer = self._trainer
        if (trainer and trainer.is_alive) or self._stream.socket is None:
            return LOOK_INTERVAL_S
        return max(0.0, self._report_at - time.monotonic())

    def _wake_up(self) -> None:
        with contextlib.suppress(BlockingIOError):
            self._wake.send(b"\0")

    def _on_wake(self) -> None:
        with contextlib.suppress(BlockingIOError):
            self._signals.recv(4096)

    def _reap(self) -> None:
        """Collect orphans, as PID 1 must; the fork server is told of by its socket."""
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        if self._orphan and not processes.state_of(self._orphan.pid)[0]:
            orphan, self._orphan = self._orphan, None
            self._on_exit(Exit(signal=signal.SIGKILL, at_ms=now_ms(), is_stop=orphan.is_stopping))

    # ---- fork server

    def _launch(self, program: Program) -> Launcher:
        launcher = Launcher(program, self._settings.preload)
        self._selector.register(launcher, selectors.EVENT_READ, self._on_launcher)
        return launcher

    def _on_launcher(self) -> None:
        for answer in self._launcher.answers():
            if answer.event == "ready":
                for line in answer.lines():
                    log(line)
            elif answer.event == "started":
                self._on_started(answer.details["pid"])
            elif answer.event == "exited":
                code, number = processes.exit_of(answer.details["status"])
                killed = bool(answer.details["killed"])
                self._on_exit(Exit(code, number, answer.details["at_ms"], is_stop=killed))
            else:
                self._on_fork_server_gone()

    def _on_started(self, pid: int) -> None:
        if self._trainer:
            self._trainer.pid = pid
            self._trainer.output.close_writer()
            with surviving("trainer.pid is not written"):
                (self._settings.run_dir / "trainer.pid").write_text(f"{pid}\n")

    def _on_fork_server_gone(self) -> None:
        was_ready, program = self._launcher.is_ready, self._launcher.program
        self._selector.unregister(self._launcher)
        self._launcher.close()
        if not was_ready and program.kind is Kind.EXEC:
            log("this Python cannot run the fork server; giving up")
            self._exit_code = 1
        elif not was_ready:
            log("the fork server did not start under the program's Python: exec instead of fork")
            program = program.as_exec()
        else:
            log("the fork server has died: starting another one")
        if self._trainer and self._trainer.is_alive:
            # The kernel kills the trainer with it (PR_SET_PDEATHSIG), which may take a while: the
            # next one must not meet its devices. It has become our child, see ``_reap``.
            self._orphan = self._trainer
        if self._exit_code is None:
            self._launcher = self._launch(program)

    # ---- trainer

    def _start_if_free(self) -> None:
        run, trainer = self._next_run, self._trainer
        if run is not None and self._exit_code is None and not (trainer and trainer.is_alive):
            self._next_run = None
            self._start(run)

    def _start(self, run: protocol.Run) -> None:
        self._newest = run.generation
        if self._trainer:
            self._trainer.close()
        settings = self._settings
        record, problem = open_record(settings.run_dir, settings.pod, run)
        output = Output(sys.stdout.fileno(), settings.progress_pattern)
        stalls = Stalls(settings.hang, runs.stacks_path(record.path))
        trainer = self._trainer = Trainer(run, record, output, stalls)
        if run.process_id == 0:
            problem = problem or runs.port_problem(run.leader)
        if problem:
            output.close_writer()
            trainer.end(Exit(at_ms=now_ms(), killed_by_agent=problem))
            return
        self._selector.register(output, selectors.EVENT_READ, self._on_output)
        start = Start(
            generation=run.generation,
            program=self._launcher.program,
            env=runs.environment(run, record.path),
            wait_for=run.leader if run.process_id else "",
        )
        self._launcher.start(start, output.writer)

    def _on_output(self) -> None:
        trainer = self._trainer
        if trainer is None:
            return
        if not trainer.output.pump():
            self._selector.unregister(trainer.output)

    def _stop(self) -> None:
        if self._trainer and self._trainer.is_alive and not self._trainer.is_stopping:
            self._trainer.is_stopping = True
            self._launcher.kill()

    def _end_if_stalled(self) -> None:
        """Nobody has decided about a hung trainer: the coordinator is away."""
        trainer = self._trainer
        if trainer and trainer.is_alive and not trainer.is_stopping and trainer.stalls.is_overdue:
            log(f"killing the trainer: {trainer.stalls.reason}\n{trainer.stalls.answer}")
            trainer.is_stopping = trainer.is_condemned = True
            self._launcher.kill()

    def _stop_if_fenced(self) -> None:
        trainer, alone_s = self._trainer, self._stream.alone_s
        if trainer and not trainer.is_stopping and trainer.is_fenced(alone_s):
            log(f"no coordinator for {alone_s:.0f} s: stopping, as others may train by now")
            self._stop()

    def _on_exit(self, result: Exit) -> None:
        trainer = self._trainer
        if trainer is None or not trainer.is_alive:
            return
        trainer.end(result)
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(trainer.output)
        processes.kill_strays(self._launcher.process.pid)
        processes.remove_leftovers()
        with surviving("trainer.pid is not removed"):
            (self._settings.run_dir / "trainer.pid").unlink(missing_ok=True)
        self._start_if_free()

    # ---- coordinator

    def _handshake(self) -> AgentSide:
        hello, incarnation = self._settings.hello, self._incarnation
        return AgentSide(
            self._settings.token,
            lambda nonce, protocol: hello(incarnation, now_ms(), nonce, protocol),
        )

    def _listen(self) -> None:
        if self._stream.socket is not None:
            self._selector.register(self._stream.socket, selectors.EVENT_READ, self._on_message)

    def _on_welcome(self) -> None:
        if self._trainer:
            self._trainer.resend()
        self._reported = ()
        if self._departure:  # a new coordinator has not heard it
            self._send(self._departure.message())

    def _log_connection(self) -> None:
        """Say once what is wrong, and once that it is over."""
        error = self._stream.last_error
        if error and not self._connection_problem:
            name = f"{self._settings.host}:{self._settings.port}"
            log(f"no connection to the coordinator {name} ({error}); trying on")
        elif self._connection_problem and self._stream.is_trusted:
            log("connected to the coordinator again")
        elif self._connection_problem:
            return
        self._connection_problem = error

    def _on_message(self) -> None:
        for message in self._stream.receive():
            self._obey(message)
        self._forget_closed()

    def _forget_closed(self) -> None:
        """Drop closed sockets from the selector, which knows them by number only."""
        keys = list(self._selector.get_map().values())
        for key in keys:
            if key.data == self._on_message and key.fileobj is not self._stream.socket:
                self._selector.unregister(key.fileobj)

    def _obey(self, message: protocol.Message) -> None:
        if isinstance(message, protocol.Run):
            self._on_run(message)
        elif isinstance(message, protocol.Stop):
            self._on_stop(message)
        elif isinstance(message, _ORDERS):
            self._on_order(message)
        elif isinstance(message, protocol.Ping):
            self._send(protocol.Pong(message.sent_at_ms, now_ms()))
        elif isinstance(message, protocol.Finish):
            log(f"finished: {message.reason}")
            self._exit_code = message.exit_code
            self._stop()
        elif isinstance(message, protocol.Welcome):
            self._on_welcome()
        elif isinstance(message, protocol.Refused):
            self._on_refused(message.reason)

    def _on_run(self, run: protocol.Run) -> None:
        if run.generation > self._newest and self._exit_code is None:
            self._next_run = run
            self._stop()  # the coordinator has ended what may still be running
        self._start_if_free()
        self._report_at = 0.0  # a refusal shows as a report of the newer state

    def _on_stop(self, stop: protocol.Stop) -> None:
        if self._next_run and self._next_run.generation <= stop.generation:
            self._next_run = None
        if self._trainer and self._trainer.generation <= stop.generation:
            self._stop()
        self._report_at = 0.0

    def _on_order(self, order: _Order) -> None:
        """Orders to the running trainer; one for another generation comes too late."""
        trainer = self._trainer
        if trainer is None or not trainer.is_alive or trainer.generation != order.generation:
            return
        if isinstance(order, protocol.Stacks):
            trainer.stalls.ask(trainer.pid)
        elif isinstance(order, protocol.Excuse):
            log("no hang: another host waits for its save")
            trainer.stalls.excuse()
        else:
            trainer.wish(order)

    def _on_refused(self, reason: str) -> None:
        if reason != self._refusal:
            log(f"the coordinator refuses this agent: {reason}")
        self._refusal = reason
        self._stream.close(reason)
        self._stream.wait(REFUSED_WAIT_S)

    def _report_if_due(self) -> None:
        look = self._trainer.look() if self._trainer else (self._newest,)
        self._end_if_stalled()
        if self._departure:
            self._depart(self._departure)
        self._stop_if_fenced()
        has_many = self._trainer is not None and self._trainer.has_many_losses
        is_due = has_many or time.monotonic() >= self._report_at
        if look == self._reported and not is_due:
            self._stream.flush()
            self._forget_closed()
            return
        self._reported = look
        hosts = self._trainer.num_processes if self._trainer else 0
        self._report_at = time.monotonic() + report_interval_s(hosts)
        if self._stream.is_trusted:
            self._send(self._report())

    def _report(self) -> Report:
        idle = Report(now_ms(), ProcessState.IDLE, self._newest)
        return self._trainer.report() if self._trainer else idle

    def _send(self, message: protocol.Message) -> None:
        self._stream.send(message)
        self._forget_closed()

    def _leave(self) -> None:
        """SIGTERM: kubelet wants the pod gone."""
        log("SIGTERM: leaving")
        self._exit_code = TERMINATED
        self._departure = Departure(self._settings.grace_s)
        self._send(self._departure.message())

    def _depart(self, departure: Departure) -> None:
        """Without a coordinator the program is to save by itself, in what time is left."""
        trainer = self._trainer
        if trainer is None or not trainer.is_alive or trainer.is_stopping:
            return
        if departure.is_over or not trainer.pid:
            self._stop()
        elif self._stream.alone_s >= AWAY_S and not trainer.is_asked_to_leave:
            log("no coordinator asks for a save: passing SIGTERM on to the program")
            trainer.is_asked_to_leave = True
            self._launcher.terminate()

    def _say_goodbye(self) -> int:
        """Deliver the last report and the last output, as far as anybody takes them."""
        self._report_at = 0.0
        self._report_if_due()
        deadline = time.monotonic() + GOODBYE_S
        while time.monotonic() < deadline:
            backlog = self._trainer is not None and self._trainer.output.has_backlog
            if not self._stream.wants_write and not backlog:
                break
            self._stream.flush()
            if self._trainer:
                self._trainer.output.flush()
            time.sleep(0.01)
        self._stream.close("leaving")
        return self._exit_code or 0
