"""Pages, layouts, tables and charts: a schedule's page, a network's layout, comparisons."""

from gradweave.report.chart import comparison_chart
from gradweave.report.comparison import TABLE_2, compare
from gradweave.report.layout import layout
from gradweave.report.notebook import show
from gradweave.report.page import page, write_page
from gradweave.report.picture.picture import to_svg, write_picture
from gradweave.report.timed import compare_seconds

__all__ = [
    "TABLE_2",
    "compare",
    "compare_seconds",
    "comparison_chart",
    "layout",
    "page",
    "show",
    "to_svg",
    "write_page",
    "write_picture",
]
