//! Landlock: files and network.

use super::{layer, not};
use anyhow::Result;
use landlock::{
    ABI, Access, AccessFs, AccessNet, BitFlags, LandlockStatus, PathBeneath, PathFd, RestrictionStatus,
    Ruleset, RulesetAttr, RulesetCreatedAttr, RulesetStatus, Scope,
};
use std::path::Path;

/// With which came the last of what is asked for below; earlier ones give their part.
const NEWEST: ABI = ABI::V6;

/// From here on nothing is read but /proc, nothing is written, and nobody is called or signalled. What is open stays so.
/// `removes_within`: a folder in which files may be removed.
pub(super) fn landlock(removes_within: Option<&Path>) -> stallscope_wire::Layer {
    match restrict(removes_within) {
        Ok(RestrictionStatus { ruleset: RulesetStatus::FullyEnforced, .. }) => {
            layer("Landlock", "reads /proc alone, no network".into())
        }
        Ok(RestrictionStatus { ruleset: RulesetStatus::PartiallyEnforced, .. }) => {
            layer("Landlock", "reads /proc alone (an earlier one: it leaves the network to seccomp)".into())
        }
        Ok(RestrictionStatus { landlock: LandlockStatus::NotEnabled, .. }) => {
            not("Landlock", "it is switched off on this kernel (lsm= on its command line)")
        }
        Ok(_) => not("Landlock", "this kernel has none (5.13 was the first)"),
        Err(error) => not("Landlock", format!("{error:#}")),
    }
}

fn restrict(removes_within: Option<&Path>) -> Result<RestrictionStatus> {
    let rule = |path: &Path, access: BitFlags<AccessFs>| -> Result<_> {
        Ok(PathBeneath::new(PathFd::new(path)?, access))
    };
    let mut rules = Ruleset::default()
        .handle_access(AccessFs::from_all(NEWEST))?
        .handle_access(AccessNet::from_all(NEWEST))?
        .scope(Scope::from_all(NEWEST))?
        .create()?
        .add_rule(rule(Path::new("/proc"), AccessFs::ReadFile.into())?)?;
    if let Some(folder) = removes_within {
        rules = rules.add_rule(rule(folder, AccessFs::RemoveFile.into())?)?;
    }
    Ok(rules.restrict_self()?)
}
