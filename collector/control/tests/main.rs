//! The controller on simulated jobs. One binary: each would be linked by itself.

mod cache;
mod checkpoints;
mod controller;
mod fetchers;
mod filling;
mod given_back;
mod growth;
mod hostile;
mod kept;
mod others;
mod pipeline;
mod remedies;
mod support;
mod swap;
mod toy;
mod whatif;
