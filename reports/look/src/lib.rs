//! How causes, figures and foreign names look: the same in terminal, text and page.

mod clean;
pub mod palette;
pub mod units;

pub use clean::clean;
