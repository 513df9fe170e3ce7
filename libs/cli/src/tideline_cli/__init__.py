"""The tideline command."""
