"""Parts that are none of Gradweave's."""
