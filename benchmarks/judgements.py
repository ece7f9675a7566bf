"""What the benchmarks of programs with planted faults share: a finding in a line, and a share of programs against its bar."""

from benchmarks.harness import Result
from kinetoscope.analyses.finding import Finding
from kinetoscope.analyses.findings import Report, gain_percent
from kinetoscope.display.sentence import plain


def finding_line(finding: Finding, report: Report) -> str:
    """A finding in a line: its code, place, gain and sentence."""
    gain = gain_percent(finding, report.whole_ns)
    return f"{finding.code} {finding.place or '-'} {'-' if gain is None else f'{gain:.0f} %'}: {plain(finding.finding)}"


def share_of(what: str, count: int, of: int, bar: float, notes: list[str], *, least: bool = True) -> Result:
    """A share of some programs or faults, against its bar in percent."""
    percent = 100 * count / max(of, 1)
    meets = percent >= bar if least else percent <= bar
    return Result(
        what, f"{'>=' if least else '<='} {bar:g} %", f"{count} of {of}, {percent:.0f} %", meets, notes
    )
