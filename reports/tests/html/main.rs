//! The HTML report: as text, and as a browser shows it.

mod browser;
mod in_browser;
mod page;
mod runs;
#[path = "../support/mod.rs"]
mod support;
