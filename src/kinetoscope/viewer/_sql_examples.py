"""Queries to begin with."""

EXAMPLES: tuple[tuple[str, str], ...] = (
    (
        "Operators by their own time",
        """\
select name, kind, count, self_ns, device_self_ns
from ops
order by self_ns desc
limit 20""",
    ),
    (
        "The longest spans of each name (a click leads to the timeline)",
        """\
select id as span, name, kind, start_ns, duration_ns, step, module
from spans
qualify row_number() over (partition by name, kind order by duration_ns desc) = 1
order by duration_ns desc
limit 50""",
    ),
    (
        "Time of each kind of span, step by step",
        """\
select step, kind, count(*) as spans, sum(self_ns) as self_ns
from spans
where step is not null
group by all
order by step, self_ns desc""",
    ),
    (
        "Steps against the median step",
        """\
select number, duration_ns,
       100.0 * duration_ns / median(duration_ns) over () as of_median_percent
from steps
order by duration_ns desc""",
    ),
    (
        "Launches that waited longest for the device",
        """\
select host as span, operator, device_name, delay_ns, queue_ns, device_ns, step
from launches
order by delay_ns desc
limit 50""",
    ),
    (
        "Kernels by module",
        """\
select module, count(*) as kernels, sum(duration_ns) as device_ns
from spans
where kind = 'kernel'
group by module
order by device_ns desc""",
    ),
    (
        "How evenly an operator runs",
        """\
select name, count(*) as calls, min(duration_ns) as min_ns, median(duration_ns) as median_ns,
       quantile_cont(duration_ns, 0.99) as p99_ns, max(duration_ns) as max_ns
from spans
where kind = 'operator'
group by name
having calls >= 10
order by max_ns - median_ns desc
limit 50""",
    ),
    (
        "Bytes allocated by module and operator",
        """\
select module, operator, sum(bytes) as bytes, count(*) as blocks
from allocations
where bytes > 0
group by all
order by bytes desc
limit 50""",
    ),
    ("The tables", "show tables"),
)
