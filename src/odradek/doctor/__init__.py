"""A doctor for clusters: `examine` asks a cluster, and reports causes with evidence and remedy; `explain` says in words
what a cause, an error or an error code of brokers means::

    report = await odradek.doctor.examine("kafka://localhost:9092", group="billing")
    for finding in report.findings:
        print(finding.severity, finding.cause, finding.evidence, finding.remedy)
"""

from odradek.doctor.causes import CAUSES, Cause, Diagnosis, Report
from odradek.doctor.examination import examine
from odradek.doctor.explanations import Explanation, explain

__all__ = ["CAUSES", "Cause", "Diagnosis", "Explanation", "Report", "examine", "explain"]
