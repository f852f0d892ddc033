"""Real worker processes under a real reactor: every misbehaviour of a user function gives the right answer,
and nothing is left behind."""

from __future__ import annotations

import colorsys  # noqa: F401
import dataclasses
import errno
import hashlib
import os
import shutil
import signal
import sys
import tempfile
import time
import types
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
from twisted.internet import reactor
from twisted.internet.defer import Deferred
from twisted.internet.task import deferLater
from twisted.trial.unittest import TestCase

from sector.errors import Cancelled, Unavailable
from sector.sphere import spawner, supervisor
from sector.sphere.supervisor import Supervisor
from sector.sphere.tasks import Done, Fault, Task, TaskInput, WorkerLimits

cloudpickle.register_pickle_by_value(sys.modules[__name__])


def gone(pid: int) -> bool:
    """Whether no such process runs (a zombie counts as gone)."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


class WorkerTests(TestCase):
    timeout = 120

    def setUp(self) -> None:
        self.dir = tempfile.mkdtemp(prefix="sphere-test-")
        os.chmod(self.dir, 0o755)
        self.spawner = spawner.start()
        self.build(WorkerLimits())

    def build(self, limits: WorkerLimits) -> None:
        self.pool = Supervisor(
            reactor, self.spawner, slots=2, scratch=os.path.join(self.dir, "scratch"), limits=limits
        )
        self.attempt = 0
        self.seen: list[tuple[float, int]] = []

    def tearDown(self) -> None:
        pids = [w.pid for w in self.pool.workers.values()]
        self.pool.stop()
        for pid in pids:
            self.assertTrue(gone(pid), f"worker {pid} lives on")
        shutil.rmtree(self.dir)

    def task(self, function: Any, data: bytes = b"hello", **options: Any) -> Task:
        blob = cloudpickle.dumps({"function": function, "params": options.pop("params", None)})
        name = hashlib.sha256(blob).hexdigest()
        path = os.path.join(self.dir, name)
        with open(path, "wb") as file:
            file.write(blob)
        data_fd = os.open(self.dir, os.O_TMPFILE | os.O_RDWR)
        os.write(data_fd, data)
        out_fd = os.open(self.dir, os.O_TMPFILE | os.O_RDWR)
        self.addCleanup(os.close, data_fd)
        self.addCleanup(os.close, out_fd)
        self.attempt += 1
        offset, length = options.pop("range", (0, len(data)))
        width = options.pop("record_size", 0)
        item = TaskInput("/data/x", data_fd, offset, offset, length, len(data), width)
        return Task(
            options.pop("job", "00" * 8),
            options.pop("segment", 3),
            self.attempt,
            name,
            path,
            (item,),
            out_fd,
            options.pop("granularity", "segment"),
            **options,
        )

    def run_task(self, task: Task) -> Deferred[Any]:
        return self.pool.run(task, lambda fraction, pid: self.seen.append((fraction, pid)))

    @staticmethod
    def output(task: Task, done: Done) -> bytes:
        return os.pread(task.output_fd, done.bytes + 8 * done.table, 0)

    async def test_segment_result_is_in_the_output_descriptor(self) -> None:
        task = self.task(lambda data, ctx: bytes(data).upper() + ctx.path.encode())
        done = await self.run_task(task)
        self.assertIsInstance(done, Done)
        self.assertEqual(self.output(task, done), b"HELLO/data/x")

    async def test_unaligned_range_is_mapped(self) -> None:
        data = bytes(range(256)) * 64
        task = self.task(lambda data, ctx: data, data, range=(5001, 777))
        done = await self.run_task(task)
        self.assertEqual(self.output(task, done), data[5001:5778])

    async def test_batch_scatters_rows_to_buckets_in_order(self) -> None:
        rows = np.arange(40, dtype=np.uint8).reshape(10, 4)

        def by_parity(rows: Any, ctx: Any) -> Any:
            return rows, rows[:, 0] // 4 % 2

        task = self.task(by_parity, rows.tobytes(), granularity="batch", record_size=4, buckets=2)
        done = await self.run_task(task)
        raw = self.output(task, done)
        self.assertEqual((done.kind, done.bytes, done.table, done.row_bytes), ("buckets", 40, 2, 4))
        self.assertEqual(raw[:40], rows[0::2].tobytes() + rows[1::2].tobytes())
        self.assertEqual(np.frombuffer(raw[40:], "<i8").tolist(), [20, 20])

    async def test_raise_is_told_with_traceback_segment_and_record(self) -> None:
        def careful(record: bytes, ctx: Any) -> None:
            if record == b"cc":
                raise ValueError("cannot take " + record.decode())

        fault = await self.run_task(self.task(careful, b"aabbccdd", granularity="record", record_size=2))
        self.assertIsInstance(fault, Fault)
        told = fault.fault
        self.assertEqual((told.type, told.segment, told.record, told.code), ("ValueError", 3, 2, "udf_error"))
        self.assertIn("cannot take cc", told.message)
        self.assertIn("in careful", told.traceback)
        self.assertNotIn("sphere/worker.py", told.traceback)

    async def test_wrong_type_is_udf_type(self) -> None:
        for bad in (5, "text", {"a": 1}, [b"x", "y"], object()):
            fault = await self.run_task(
                self.task(lambda data, ctx, bad=repr(bad): eval(bad, {}) if "obj" not in bad else object())
            )
            self.assertEqual(fault.fault.code, "udf_type", repr(bad))

    async def test_errors_with_texts_of_any_kind_are_told(self) -> None:
        def emoji(data: Any, ctx: Any) -> None:
            raise ValueError("\N{GRINNING FACE}" * 100_000)

        def undecodable(data: Any, ctx: Any) -> None:
            raise ValueError(b"caf\xe9.fits".decode("utf-8", "surrogateescape"))

        fault = await self.run_task(self.task(emoji))
        self.assertEqual((fault.fault.type, fault.fault.message), ("ValueError", "\N{GRINNING FACE}" * 8000))
        self.assertIn("in emoji", fault.fault.traceback)
        fault = await self.run_task(self.task(undecodable))
        self.assertEqual((fault.fault.type, fault.fault.message), ("ValueError", "caf\\udce9.fits"))

    async def test_a_module_that_the_slave_lacks_is_named_without_our_insides(self) -> None:
        module = types.ModuleType("astro_of_mine")
        exec("def gauge(data, ctx): return b'x'", module.__dict__)
        sys.modules["astro_of_mine"] = module
        self.addCleanup(sys.modules.pop, "astro_of_mine")
        module.gauge.__module__ = "astro_of_mine"
        fault = (await self.run_task(self.task(module.gauge))).fault
        self.assertEqual((fault.type, fault.code, fault.traceback), ("ModuleNotFoundError", "udf_error", ""))
        self.assertIn("No module named 'astro_of_mine' on the slave: install it", fault.message)
        module.gauge.__module__ = "colorsys"
        sys.modules["colorsys"].gauge = module.gauge  # type: ignore[attr-defined]
        self.addCleanup(delattr, sys.modules["colorsys"], "gauge")
        fault = (await self.run_task(self.task(module.gauge))).fault
        self.assertEqual((fault.type, fault.traceback), ("AttributeError", ""))
        self.assertIn("gauge", fault.message)

    async def test_a_full_disk_is_not_the_functions_fault(self) -> None:
        """It does not take the results; the slave is left out then. Also when the function goes on."""

        def returns(data: Any, ctx: Any) -> bytes:
            return bytes(3_000_000)

        def goes_on(data: Any, ctx: Any) -> None:
            for number in range(40):
                try:
                    ctx.emit(number % 2, bytes(2_000_000))
                except OSError:
                    return

        full = os.open("/dev/full", os.O_RDWR)
        self.addCleanup(os.close, full)
        for function, buckets in ((returns, 0), (goes_on, 2)):
            task = dataclasses.replace(self.task(function, buckets=buckets), output_fd=full)
            error = await self.assertFailure(self.run_task(task), OSError)
            self.assertEqual(error.errno, errno.ENOSPC)
        task = self.task(returns)
        self.assertEqual((await self.run_task(task)).bytes, 3_000_000)

    async def test_the_functions_own_disk_errors_stay_its_own(self) -> None:
        def fills(data: Any, ctx: Any) -> None:
            with open("/dev/full", "w") as file:
                file.write("x")

        fault = await self.run_task(self.task(fills))
        self.assertEqual((fault.fault.type, fault.fault.code), ("OSError", "udf_error"))

    async def test_a_child_that_returns_too_adds_nothing_to_the_result(self) -> None:
        """It goes on behind the fork as its parent does, and would answer, too, for it and for others."""

        def both(record: bytes, ctx: Any) -> bytes:
            if record == b"bb" and os.fork() == 0:
                time.sleep(0.5)
            return record * 300_000

        def both_scatter(data: Any, ctx: Any) -> None:
            for number in range(200):
                ctx.emit(number % 2, b"%03d" % number * 300_000)
                if number == 80 and os.fork() == 0:
                    time.sleep(0.05)

        def later(data: Any, ctx: Any) -> bytes:
            time.sleep(1.5)
            return b"later"

        for _ in range(2):
            task = self.task(both, b"aabbccdd", granularity="record", record_size=2)
            done = await self.run_task(task)
            expected = b"".join(record * 300_000 for record in (b"aa", b"bb", b"cc", b"dd"))
            self.assertEqual(self.output(task, done), expected)
            after = self.task(later)
            done = await self.run_task(after)  # the child returns meanwhile
            self.assertEqual(self.output(after, done), b"later")
            self.assertEqual(os.fstat(task.output_fd).st_size, len(expected))
        task = self.task(both_scatter, buckets=2)
        done = await self.run_task(task)
        digest = hashlib.sha256()
        for number in [*range(0, 200, 2), *range(1, 200, 2)]:
            digest.update(b"%03d" % number * 300_000)
        self.assertEqual(hashlib.sha256(os.pread(task.output_fd, done.bytes, 0)).digest(), digest.digest())

    async def test_a_function_may_take_its_streams_away(self) -> None:
        def close(data: Any, ctx: Any) -> bytes:
            sys.stdout = sys.stderr = None  # type: ignore[assignment]
            return b"done"

        task = self.task(close)
        done = await self.run_task(task)
        self.assertEqual(self.output(task, done), b"done")

    async def test_sys_exit_and_os_exit(self) -> None:
        fault = await self.run_task(self.task(lambda data, ctx: sys.exit(4)))
        self.assertEqual((fault.fault.type, fault.fault.code), ("SystemExit", "udf_error"))
        fault = await self.run_task(self.task(lambda data, ctx: os._exit(7)))
        self.assertEqual(fault.fault.type, "exit")
        self.assertIn("exit status 7", fault.fault.message)

    async def test_segfault_is_the_functions_fault_with_its_traceback(self) -> None:
        def crash(data: Any, ctx: Any) -> None:
            import ctypes

            print("before the crash")
            ctypes.string_at(0)

        fault = await self.run_task(self.task(crash))
        self.assertEqual(fault.fault.type, "signal")
        self.assertIn("SIGSEGV", fault.fault.message)
        self.assertIn("in crash", fault.fault.traceback)
        self.assertNotIn("before the crash", fault.fault.traceback)
        self.assertEqual(fault.log, "before the crash\n")
        done = await self.run_task(self.task(lambda data, ctx: b"next"))
        self.assertIsInstance(done, Done)

    async def test_printing_is_captured_and_bounded(self) -> None:
        def talk(data: Any, ctx: Any) -> bytes:
            for number in range(200_000):
                print("line", number)
            ctx.log("the end")
            return b"ok"

        done = await self.run_task(self.task(talk))
        self.assertTrue(done.log.rstrip().endswith("the end"))
        self.assertLess(len(done.log), 8193)
        for worker in self.pool.workers.values():
            self.assertLessEqual(len(worker.tail), supervisor.LOG_KEEP)

    async def test_printing_without_end_leaves_the_slave_its_processor(self) -> None:
        """The function waits, not the slave: it spent half a core on reading what nobody sees."""

        def chatter(data: Any, ctx: Any) -> None:
            while True:
                print("x" * 10_000)

        began = time.process_time()
        fault = await self.run_task(self.task(chatter, timeout_s=3.0))
        used = time.process_time() - began
        self.assertEqual(fault.fault.code, "udf_timeout")
        self.assertIn("x" * 1000, fault.log)
        self.assertLess(used, 0.8)

    async def test_as_much_is_shown_as_the_guide_says(self) -> None:
        def talk(data: Any, ctx: Any) -> None:
            print("x" * 20_000 + "y" * 7_999)

        done = await self.run_task(self.task(talk))
        self.assertEqual(done.log, "y" * 7_999 + "\n")
        guide = Path(__file__).resolve().parents[2] / "docs" / "guide" / "sphere.md"
        self.assertIn("last 8,000 bytes", guide.read_text())

    async def test_endless_loop_ends_at_its_time_limit(self) -> None:
        def loop(data: Any, ctx: Any) -> None:
            while True:
                pass

        begun = time.monotonic()
        fault = await self.run_task(self.task(loop, timeout_s=1.5))
        self.assertEqual(fault.fault.code, "udf_timeout")
        self.assertLess(time.monotonic() - begun, 20)

    async def test_kill_from_outside_is_not_the_functions_fault(self) -> None:
        result = self.run_task(self.task(lambda data, ctx: time.sleep(60)))
        pid = 0
        for _ in range(200):
            await deferLater(reactor, 0.05)
            pid = next((p for _, p in self.seen if p), 0)
            if pid:
                break
        os.kill(pid, signal.SIGKILL)
        await self.assertFailure(result, Unavailable)

    async def test_stopped_worker_is_given_up(self) -> None:
        self.pool.limits = WorkerLimits(silence_s=2.0)
        result = self.run_task(self.task(lambda data, ctx: time.sleep(60)))
        while not (pids := [p for _, p in self.seen if p]):
            await deferLater(reactor, 0.05)
        os.kill(pids[0], signal.SIGSTOP)
        await self.assertFailure(result, Unavailable)

    async def test_memory_limit_is_an_ordinary_error(self) -> None:
        self.pool.limits = WorkerLimits(memory=512 << 20)
        fault = await self.run_task(self.task(lambda data, ctx: bytes(1 << 30)))
        self.assertEqual(fault.fault.type, "MemoryError")

    async def test_a_machine_without_memory_ends_functions_before_its_slave(self) -> None:
        def look(data: Any, ctx: Any) -> bytes:
            import subprocess

            own = Path("/proc/self/oom_score_adj").read_bytes()
            return own + subprocess.run(["cat", "/proc/self/oom_score_adj"], capture_output=True).stdout

        task = self.task(look)
        done = await self.run_task(task)
        self.assertEqual(self.output(task, done).split(), [b"1000", b"1000"])

    async def test_worker_has_no_secrets_no_descriptors_and_own_scratch(self) -> None:
        os.environ["SECTOR_TEST_SECRET"] = "do not tell"
        self.addCleanup(os.environ.pop, "SECTOR_TEST_SECRET")

        def look(data: Any, ctx: Any) -> list[bytes]:
            open_files = sorted(
                os.readlink(f"/proc/self/fd/{fd}")
                for fd in os.listdir("/proc/self/fd")
                if os.path.exists(f"/proc/self/fd/{fd}")
            )
            with open(os.path.join(ctx.scratch, "mine"), "w") as file:
                file.write("x")
            return [
                repr(dict(os.environ)).encode(),
                repr(open_files).encode(),
                os.getcwd().encode(),
                str(os.getuid()).encode(),
            ]

        task = self.task(look)
        done = await self.run_task(task)
        raw = self.output(task, done).decode("latin-1")
        self.assertNotIn("do not tell", raw)
        self.assertNotIn("eventpoll", raw)
        self.assertIn("scratch/w1", raw)

    async def test_children_left_by_a_function_are_killed(self) -> None:
        def leave(data: Any, ctx: Any) -> bytes:
            import subprocess

            child = subprocess.Popen(["sleep", "300"], start_new_session=True)
            return str(child.pid).encode()

        task = self.task(leave)
        done = await self.run_task(task)
        pid = int(self.output(task, done))
        self.assertFalse(gone(pid))
        self.pool.stop()
        self.assertTrue(gone(pid))
        self.spawner = spawner.start()
        self.build(WorkerLimits())

    async def test_children_in_sessions_of_their_own_end_with_their_worker(self) -> None:
        """Not only with the slave; those of another worker, and of one that goes on, live."""

        def leave(data: Any, ctx: Any) -> bytes:
            import subprocess

            script = (
                "setsid sh -c 'setsid sleep 300 >/dev/null & echo $!; exec sleep 300 >/dev/null' & sleep 0.3"
            )
            lines = subprocess.run(["sh", "-c", script], stdout=subprocess.PIPE, check=True).stdout.split()
            child = subprocess.Popen(["sleep", "300"], start_new_session=True)
            return b" ".join([*lines, str(child.pid).encode()])

        pids: dict[str, list[int]] = {}
        for job in ("aa" * 8, "bb" * 8):
            task = self.task(leave, job=job)
            done = await self.run_task(task)
            pids[job] = [int(pid) for pid in self.output(task, done).split()]
            self.assertEqual(len(pids[job]), 2)
        self.assertFalse(any(gone(pid) for each in pids.values() for pid in each))
        self.pool.end_job("aa" * 8)
        await self.until(lambda: all(gone(pid) for pid in pids["aa" * 8]))
        self.assertFalse(any(gone(pid) for pid in pids["bb" * 8]))
        self.pool.end_job("bb" * 8)
        await self.until(lambda: all(gone(pid) for pid in pids["bb" * 8]))

    async def test_worker_keeps_objects_between_segments(self) -> None:
        def count(data: Any, ctx: Any) -> bytes:
            ctx.objects["n"] = ctx.objects.get("n", 0) + 1
            return str(ctx.objects["n"]).encode()

        for expected in (b"1", b"2", b"3"):
            task = self.task(count)
            done = await self.run_task(task)
            self.assertEqual(self.output(task, done), expected)

    async def test_jobs_take_turns(self) -> None:
        order: list[str] = []
        results = []
        for number in range(12):
            job = "aa" * 8 if number < 8 else "bb" * 8
            task = self.task(lambda data, ctx: time.sleep(0.05), job=job)
            result = self.run_task(task)
            result.addCallback(lambda _, job=job: order.append(job[:1]))
            results.append(result)
        for result in results:
            await result
        self.assertIn("b", order[:6])

    async def test_cancel_kills(self) -> None:
        task = self.task(lambda data, ctx: time.sleep(60))
        result = self.run_task(task)
        while not any(pid for _, pid in self.seen):
            await deferLater(reactor, 0.05)
        pid = max(pid for _, pid in self.seen)
        self.assertTrue(self.pool.cancel(task.job, task.segment, task.attempt))
        await self.assertFailure(result, Cancelled)
        for _ in range(100):
            if gone(pid):
                break
            await deferLater(reactor, 0.05)
        self.assertTrue(gone(pid))

    async def until(self, condition: Any) -> None:
        for _ in range(400):
            if condition():
                return
            await deferLater(reactor, 0.02)
        self.fail("it did not come to pass")

    async def test_a_dead_spawner_is_replaced_and_its_workers_die(self) -> None:
        """What ran or waited goes to another slave; a moment later segments run here again."""
        seen: list[str] = []
        self.pool.watch(seen.append)

        def sleep(data: Any, ctx: Any) -> bytes:
            time.sleep(100)
            return b""

        pending = [self.pool.run(self.task(sleep, segment=n), lambda fraction, pid: None) for n in range(3)]
        await self.until(lambda: sum(w.ready for w in self.pool.workers.values()) == 2)
        pids = [w.pid for w in self.pool.workers.values()]
        os.kill(self.spawner.process.pid, signal.SIGKILL)
        for waiting in pending:
            error = await self.assertFailure(waiting, Unavailable)
            self.assertIn("has ended; another is started", error.message)
        self.assertEqual((self.pool.busy, self.pool.waiting()), (0, 0))
        refused = self.pool.run(self.task(sleep), lambda fraction, pid: None)
        await self.assertFailure(refused, Unavailable)
        await self.until(lambda: all(gone(pid) for pid in pids))
        await self.until(lambda: len(seen) == 2)
        self.assertEqual((bool(seen[0]), seen[1]), (True, ""))
        task = self.task(lambda data, ctx: bytes(data)[::-1])
        self.assertEqual(self.output(task, await self.run_task(task)), b"olleh")

    async def test_a_worker_without_room_for_its_folder_is_an_error_of_its_segment(self) -> None:
        """Not of the slave: the next segment may find room."""
        away = self.pool.scratch + ".away"
        os.rename(self.pool.scratch, away)
        task = self.task(lambda data, ctx: bytes(data))
        error = await self.assertFailure(self.run_task(task), Unavailable)
        self.assertIn("no worker can be started", error.message)
        os.rename(away, self.pool.scratch)
        task = self.task(lambda data, ctx: bytes(data))
        self.assertEqual(self.output(task, await self.run_task(task)), b"hello")

    async def test_workers_die_with_a_killed_slave(self) -> None:
        code = (
            "import sys, time, os; sys.path.append(sys.argv[1])\n"
            "from sector.sphere import spawner, channel\n"
            "s = spawner.start(); a, b = channel.pair(); r, w = os.pipe()\n"
            "channel.send(s.sock, {'op': 'spawn', 'id': 1, 'scratch': '/tmp'}, [b.fileno(), w])\n"
            "s.sock.setblocking(True); m, _ = channel.receive(s.sock)\n"
            "print(s.process.pid, m['pid'], flush=True); time.sleep(100)\n"
        )
        import subprocess

        process = subprocess.Popen([sys.executable, "-c", code, spawner._ROOT], stdout=subprocess.PIPE)
        assert process.stdout is not None
        pids = [int(word) for word in process.stdout.readline().split()]
        process.kill()
        process.wait()
        process.stdout.close()
        for _ in range(100):
            if all(gone(pid) for pid in pids):
                break
            await deferLater(reactor, 0.05)
        self.assertTrue(all(gone(pid) for pid in pids))
