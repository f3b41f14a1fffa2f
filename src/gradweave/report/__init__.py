"""What people look at: the page of a schedule, the layout of a network, a comparison's chart."""

from gradweave.report.chart import comparison_chart
from gradweave.report.layout import layout
from gradweave.report.page import page, write_page

__all__ = ["comparison_chart", "layout", "page", "write_page"]
