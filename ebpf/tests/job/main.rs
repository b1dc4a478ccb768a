//! What the kernel programs see of a job. Needs root; says so where it has to skip.

#[cfg(test)]
mod files;
#[cfg(test)]
mod follow;
#[cfg(test)]
mod kinds;
#[cfg(test)]
mod owners;
#[cfg(test)]
mod support;
