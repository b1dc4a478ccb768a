//! Which user the node's collector becomes, and which capabilities it keeps.

use super::{layer, not};
use anyhow::{Context, Result, ensure};
use nix::unistd::{Gid, Uid, User, setgroups, setresgid, setresuid};
use rustix::process::{DumpableBehavior, set_dumpable_behavior};
use rustix::thread::{
    CapabilitySet, CapabilitySets, capabilities, remove_capability_from_bounding_set, set_capabilities,
    set_keep_capabilities, set_no_new_privs,
};
use stallscope_ebpf::Kernel;
use stallscope_wire::Layer;

/// The user that root becomes where it exists; else `nobody`, as which other services may run that then may end this one.
const OWN_USER: &str = "stallscope";
/// Where even that has no name.
const NOBODY: u32 = 65534;

/// The user to become.
#[derive(Clone, Debug)]
pub(crate) struct Account {
    name: String,
    uid: Uid,
    gid: Gid,
}

impl Account {
    /// The user `name`, which may be a number; without one a user that suits. `None` where we are not root, and stay the user we are.
    ///
    /// # Errors
    /// There is no such user, or we are not root.
    pub(crate) fn find(name: Option<&str>) -> Result<Option<Account>> {
        if !Uid::effective().is_root() {
            ensure!(name.is_none(), "root alone can become another user; leave --user out");
            return Ok(None);
        }
        let found = match name {
            Some(name) => Account::named(name)
                .or_else(|| Account::numbered(name.parse().ok()?))
                .with_context(|| format!("there is no user {name}; name another with --user"))?,
            None => Account::named(OWN_USER)
                .or_else(|| Account::named("nobody"))
                .or_else(|| Account::numbered(NOBODY))
                .context("there is no user nobody; name another with --user")?,
        };
        Ok(Some(found))
    }

    pub(crate) fn is_root(&self) -> bool {
        self.uid.is_root()
    }

    pub(crate) fn uid(&self) -> u32 {
        self.uid.as_raw()
    }

    /// No other program is to run as this user.
    pub(crate) fn is_own(&self) -> bool {
        self.name == OWN_USER
    }

    fn named(name: &str) -> Option<Account> {
        User::from_name(name).ok().flatten().map(Account::from)
    }

    fn numbered(uid: u32) -> Option<Account> {
        let uid = Uid::from_raw(uid);
        let known = User::from_uid(uid).ok().flatten().map(Account::from);
        let unknown = Account { name: uid.to_string(), uid, gid: Gid::from_raw(uid.as_raw()) };
        Some(known.unwrap_or(unknown))
    }

    pub(crate) fn take(&self) -> Result<()> {
        // Else the change of user would take the capabilities that are still to be tried for.
        set_keep_capabilities(true).context("keeping capabilities")?;
        let groups = "CAP_SETGID is missing, to leave root's groups";
        setgroups(&[]).context(groups)?;
        setresgid(self.gid, self.gid, self.gid).context(groups)?;
        setresuid(self.uid, self.uid, self.uid).context("CAP_SETUID is missing, to become another user")?;
        Ok(())
    }
}

impl From<User> for Account {
    fn from(user: User) -> Account {
        Account { name: user.name, uid: user.uid, gid: user.gid }
    }
}

pub(super) fn become_user(account: Option<&Account>) -> Layer {
    let taken = account.map_or(Ok(()), Account::take);
    // Evidence of all users is in this memory: no other process of this user may look into it, and no core is left. Only
    // now, as a change of user sets this anew.
    let secret = set_dumpable_behavior(DumpableBehavior::NotDumpable);
    match (account, taken, secret) {
        (_, Err(error), _) => not("user", format!("it stays root: {error:#}")),
        (Some(account), Ok(()), _) if account.uid.is_root() => not("user", "it stays root, as --user has it"),
        (_, _, Err(error)) => not("user", format!("its memory is open to its user: {error}")),
        (Some(account), ..) => layer("user", account.name.clone()),
        (None, ..) => layer("user", crate::host::user_name(Uid::effective().as_raw())),
    }
}

/// Whether /proc shows a process to those alone who may trace it.
pub(super) fn processes_are_hidden() -> bool {
    // Others' mounts in it need not have names in UTF-8.
    let mounts = std::fs::read("/proc/self/mountinfo").unwrap_or_default();
    let mounts = String::from_utf8_lossy(&mounts);
    // What was mounted last lies on top.
    let proc = mounts.lines().rfind(|line| line.split(' ').nth(4) == Some("/proc"));
    proc.is_some_and(|line| line.contains("hidepid="))
}

/// Tries which capabilities the work takes on this kernel, keeps these and gives all others away for good.
pub(super) fn keep_needed_capabilities(kernel: &mut Kernel, hidden: bool) -> Result<Layer> {
    let held = capabilities(None).context("cannot tell what capabilities there are")?.permitted;
    let always = if hidden { CapabilitySet::SYS_PTRACE & held } else { CapabilitySet::empty() };
    // Before 5.19 each use of a map took CAP_BPF, unless a setting waived that, which may be set again.
    let setting = std::fs::read_to_string("/proc/sys/kernel/unprivileged_bpf_disabled").unwrap_or_default();
    let tried = [CapabilitySet::empty(), CapabilitySet::BPF, CapabilitySet::BPF | CapabilitySet::PERFMON];
    let mut refused = None;
    for needed in tried.into_iter().skip(usize::from(setting.trim() == "0")) {
        let kept = (always | needed) & held;
        set_capabilities(
            None,
            CapabilitySets { effective: kept, permitted: held, inheritable: CapabilitySet::empty() },
        )?;
        match kernel.rehearse() {
            Ok(()) => {
                give_away_all_but(kept)?;
                return Ok(capabilities_layer(kept, hidden));
            }
            Err(error) => refused = Some(error),
        }
    }
    Err(refused.context("no capability was tried")?.into())
}

fn capabilities_layer(kept: CapabilitySet, hidden: bool) -> Layer {
    let names: Vec<String> = kept.iter_names().map(|(name, _)| format!("CAP_{name}")).collect();
    let mut kept_names = if names.is_empty() { "none".to_owned() } else { names.join(" and ") };
    if hidden && !kept.contains(CapabilitySet::SYS_PTRACE) {
        kept_names.push_str(
            " (/proc is mounted with hidepid, and CAP_SYS_PTRACE is missing to see other users' jobs)",
        );
    }
    layer("capabilities", kept_names)
}

fn give_away_all_but(kept: CapabilitySet) -> Result<()> {
    // Takes CAP_SETPCAP. Without it they can't be had again either, as no program can be executed.
    let held = capabilities(None)?.permitted;
    if held.contains(CapabilitySet::SETPCAP) {
        set_capabilities(
            None,
            CapabilitySets {
                effective: kept | CapabilitySet::SETPCAP,
                permitted: held,
                inheritable: CapabilitySet::empty(),
            },
        )?;
        for other in CapabilitySet::all().difference(kept).iter() {
            // The kernel may not know the newest.
            let _ = remove_capability_from_bounding_set(other);
        }
    }
    let none = CapabilitySet::empty();
    set_capabilities(None, CapabilitySets { effective: kept, permitted: kept, inheritable: none })
        .context("cannot give capabilities away")
}

/// Gives all others away for good.
pub(crate) fn keep_capabilities(kept: CapabilitySet) -> Result<()> {
    give_away_all_but(kept)
}

pub(crate) fn drop_all_capabilities() -> Result<()> {
    give_away_all_but(CapabilitySet::empty())
}

pub(super) fn no_new_privileges() -> Layer {
    match set_no_new_privs(true) {
        Ok(()) => layer("new privileges", "none".into()),
        Err(error) => not("new privileges", error),
    }
}
