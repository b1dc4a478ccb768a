//! How causes, figures and foreign names look: the same in terminal, text and page.

pub mod cache;
mod clean;
mod meaning;
pub mod palette;
pub mod tuning;
pub mod units;

pub use clean::clean;
pub use meaning::meaning;
