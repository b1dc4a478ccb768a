//! What is made of events. One binary: each would be linked by itself.

mod anything;
mod cache;
mod checkpoints;
mod critical_path;
mod cuts;
mod details;
mod dropped;
mod epochs;
mod evaluations;
mod findings;
mod handovers;
mod loops;
mod members;
mod merged;
mod passage;
mod phases;
mod ranks;
mod remedies;
mod services;
mod short_of_cpu;
mod silences;
mod stage;
