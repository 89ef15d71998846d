"""List what shows each record in a notebook. Views know records; records know no view."""

from whet.ui.notebook import show_records

VIEWS = {
    "whet.comparison.bench.report.Gate": "whet.comparison.bench.notebook.gate_html",
    "whet.comparison.bench.report.Sweep": "whet.comparison.bench.notebook.sweep_html",
    "whet.comparison.claim.Claim": "whet.comparison.notebook.claim_html",
    "whet.installation.checkup.Checkup": "whet.installation.notebook.checkup_html",
    "whet.measure.machine.limits.Limits": "whet.measure.machine.notebook.limits_html",
    "whet.measure.machine.measured_limits.LimitsByDevice": "whet.measure.machine.notebook.all_limits_html",
    "whet.profiling.model.report.Report": "whet.profiling.model.notebook.report_html",
    "whet.profiling.step.report.StepReport": "whet.profiling.step.notebook.report_html",
    "whet.profiling.trace.changes.TraceChanges": "whet.profiling.trace.notebook.changes_html",
    "whet.profiling.trace.report.TraceReport": "whet.profiling.trace.notebook.report_html",
    "whet.server.load_test.report.Report": "whet.server.load_test.notebook.report_html",
    "whet.tuner.apply.Applied": "whet.tuner.notebook.applied_html",
    "whet.tuner.result.Result": "whet.tuner.notebook.result_html",
}
"""The dotted name of a record's class -> that of the function that returns its HTML."""


def register_views() -> None:
    show_records(VIEWS)
