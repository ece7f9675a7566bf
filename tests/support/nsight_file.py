"""Makes SQLite files as `nsys export --type sqlite` does, with the columns of its documented schema."""

import sqlite3
from contextlib import closing

COLUMNS = {
    "StringIds": "id INTEGER PRIMARY KEY, value TEXT NOT NULL",
    "CUPTI_ACTIVITY_KIND_KERNEL": """start INTEGER NOT NULL, end INTEGER NOT NULL, deviceId INTEGER, contextId INTEGER, greenContextId INTEGER,
        streamId INTEGER, correlationId INTEGER, globalPid INTEGER, demangledName INTEGER, shortName INTEGER, mangledName INTEGER,
        launchType INTEGER, registersPerThread INTEGER, gridX INTEGER, gridY INTEGER, gridZ INTEGER, blockX INTEGER, blockY INTEGER,
        blockZ INTEGER, staticSharedMemory INTEGER, dynamicSharedMemory INTEGER, graphNodeId INTEGER""",
    "CUPTI_ACTIVITY_KIND_MEMCPY": """start INTEGER NOT NULL, end INTEGER NOT NULL, deviceId INTEGER, contextId INTEGER, streamId INTEGER,
        correlationId INTEGER, globalPid INTEGER, bytes INTEGER, copyKind INTEGER, srcKind INTEGER, dstKind INTEGER, graphNodeId INTEGER""",
    "CUPTI_ACTIVITY_KIND_MEMSET": """start INTEGER NOT NULL, end INTEGER NOT NULL, deviceId INTEGER, contextId INTEGER, streamId INTEGER,
        correlationId INTEGER, globalPid INTEGER, value INTEGER, bytes INTEGER, memKind INTEGER, graphNodeId INTEGER""",
    "CUPTI_ACTIVITY_KIND_GRAPH_TRACE": """start INTEGER NOT NULL, end INTEGER NOT NULL, deviceId INTEGER, contextId INTEGER, streamId INTEGER,
        correlationId INTEGER, globalPid INTEGER, graphId INTEGER""",
    "CUPTI_ACTIVITY_KIND_RUNTIME": """start INTEGER NOT NULL, end INTEGER NOT NULL, eventClass INTEGER, globalTid INTEGER, correlationId INTEGER,
        nameId INTEGER, returnValue INTEGER""",
    "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION": "start INTEGER, end INTEGER, globalPid INTEGER, syncType INTEGER",
    "NVTX_EVENTS": """start INTEGER NOT NULL, end INTEGER, eventType INTEGER, text TEXT, globalTid INTEGER, textId INTEGER,
        domainId INTEGER""",
    "OSRT_API": """start INTEGER NOT NULL, end INTEGER NOT NULL, globalTid INTEGER, correlationId INTEGER, nameId INTEGER""",
    "CUDA_GPU_MEMORY_USAGE_EVENTS": """start INTEGER NOT NULL, globalPid INTEGER, deviceId INTEGER, address INTEGER, bytes INTEGER,
        memKind INTEGER, memoryOperationType INTEGER, correlationId INTEGER""",
    "GPU_METRICS": "timestamp INTEGER, typeId INTEGER, metricId INTEGER, value INTEGER",
    "ThreadNames": "nameId INTEGER, priority INTEGER, globalTid INTEGER",
    "PROCESSES": "globalPid INTEGER, pid INTEGER, name TEXT",
    "TARGET_INFO_GPU": "id INTEGER, name TEXT, totalMemory INTEGER, smCount INTEGER",
    "TARGET_INFO_CUDA_DEVICE": "gpuId INTEGER, cudaId INTEGER, pid INTEGER",
    "TARGET_INFO_SESSION_START_TIME": "utcEpochNs INTEGER, utcTime TEXT",
    "META_DATA_EXPORT": "name TEXT, value TEXT",
    "DIAGNOSTIC_EVENT": "timestamp INTEGER, severity INTEGER, text TEXT",
    "ENUM_DIAGNOSTIC_SEVERITY_LEVEL": "id INTEGER, name TEXT, label TEXT",
}  # fmt: skip
START_REALTIME_NS = 1_700_000_000_000_000_000


class NsightFile:
    """Collects rows; `write` makes the file, with the tables that have some."""

    def __init__(self, pid=4242):
        self.pid = pid
        self.rows = {"TARGET_INFO_SESSION_START_TIME": [{"utcEpochNs": START_REALTIME_NS}]}
        self._strings = {}

    def text(self, value):
        """The id of a string."""
        return self._strings.setdefault(value, len(self._strings) + 1)

    def add(self, table, **row):
        self.rows.setdefault(table, []).append(row)

    def thread(self, number=1, pid=None):
        """The serialized id of a thread; the upper bits say which machine."""
        return 1 << 56 | (pid or self.pid) << 24 | number

    def call(self, name, start, end, correlation, *, thread=1, pid=None):
        self.add(
            "CUPTI_ACTIVITY_KIND_RUNTIME", start=start, end=end, nameId=self.text(name), correlationId=correlation,
            globalTid=self.thread(thread, pid), returnValue=0,
        )  # fmt: skip

    def _device(self, table, start, end, correlation, stream, device, pid, **more):
        self.add(
            table, start=start, end=end, correlationId=correlation, streamId=stream, deviceId=device, contextId=1,
            globalPid=self.thread(0, pid), **more,
        )  # fmt: skip

    def kernel(self, name, start, end, correlation, *, stream=7, device=0, pid=None, **more):
        sizes = {
            f"{part}{axis}": size
            for part, size in (("grid", 4), ("block", 128))
            for axis, size in zip("XYZ", (size, 1, 1), strict=True)
        }
        self._device(
            "CUPTI_ACTIVITY_KIND_KERNEL", start, end, correlation, stream, device, pid, demangledName=self.text(name),
            shortName=self.text(name.partition("<")[0]), registersPerThread=32, staticSharedMemory=1024, dynamicSharedMemory=512,
            **sizes, **more,
        )  # fmt: skip

    def copy(
        self, start, end, correlation, size, *, kind=1, source=0, target=2, stream=7, device=0, pid=None
    ):
        self._device(
            "CUPTI_ACTIVITY_KIND_MEMCPY", start, end, correlation, stream, device, pid, bytes=size, copyKind=kind,
            srcKind=source, dstKind=target,
        )  # fmt: skip

    def fill(self, start, end, correlation, size, *, stream=7, device=0, pid=None):
        self._device(
            "CUPTI_ACTIVITY_KIND_MEMSET", start, end, correlation, stream, device, pid, bytes=size, memKind=2
        )

    def graph(self, number, start, end, correlation, *, stream=7, device=0, pid=None):
        self._device(
            "CUPTI_ACTIVITY_KIND_GRAPH_TRACE", start, end, correlation, stream, device, pid, graphId=number
        )

    def range(self, text, start, end, *, event_type=59, thread=1, pid=None, inline=True, domain=0):
        stored = {"text": text} if inline else {"textId": self.text(text)}
        self.add(
            "NVTX_EVENTS",
            start=start,
            end=end,
            eventType=event_type,
            globalTid=self.thread(thread, pid),
            domainId=domain,
            **stored,
        )

    def memory(self, start, address, size, *, freed=False, device=0, correlation=-1, kind=2):
        self.add(
            "CUDA_GPU_MEMORY_USAGE_EVENTS", start=start, globalPid=self.thread(0), deviceId=device, address=address, bytes=size,
            memKind=kind, memoryOperationType=int(freed), correlationId=correlation,
        )  # fmt: skip

    def write(self, path):
        self.rows["StringIds"] = [{"id": number, "value": value} for value, number in self._strings.items()]
        with closing(sqlite3.connect(path)) as connection, connection:
            for table, rows in self.rows.items():
                connection.execute(f"CREATE TABLE {table} ({COLUMNS[table]})")
                for row in rows:
                    names = ", ".join(f'"{name}"' for name in row)
                    places = ", ".join("?" for _ in row)
                    connection.execute(f"INSERT INTO {table} ({names}) VALUES ({places})", list(row.values()))
        return path
