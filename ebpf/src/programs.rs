//! The kernel programs one by one: each is loaded, attached and judged on its own.

use std::io::{self, Read};

use aya::programs::tp_btf::BtfTracePointLink;
use aya::programs::{Program, ProgramError};
use aya::{Btf, BtfError, Ebpf};

use crate::Error;
use crate::error::in_full;

/// How a program is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// Attached while somebody watches; nothing works without.
    Needed,
    /// Attached while somebody watches, where the kernel has it.
    Extra,
    /// Attached while somebody watches and asks for it.
    Syscalls,
    /// Run when a job is taken up or let go.
    Iterator,
}

/// In the order of attaching. A task must not be followed before its switches and its end are seen, so fork is
/// the last of its kind; detaching goes the other way.
const PROGRAMS: [(&str, Role); 10] = [
    ("sched_process_exit", Role::Needed),
    (SWITCHES, Role::Needed),
    ("sched_waking", Role::Needed),
    ("sched_process_exec", Role::Extra),
    ("task_rename", Role::Extra),
    ("sched_process_fork", Role::Needed),
    ("sys_exit", Role::Syscalls),
    ("sys_enter", Role::Syscalls),
    (SEED, Role::Iterator),
    (RELEASE, Role::Iterator),
];

pub(crate) const SWITCHES: &str = "sched_switch";
pub(crate) const SEED: &str = "seed";
pub(crate) const RELEASE: &str = "release";

/// What became of one kernel program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProgramState {
    Attached,
    /// Loaded; attached when it is asked for.
    Off,
    /// This kernel lacks what the program hooks. Information: fewer figures.
    Missing(String),
    /// The kernel has the hook and refuses the program. An error of ours.
    Broken(String),
}

/// One kernel program and its state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProgramStatus {
    pub name: &'static str,
    pub state: ProgramState,
}

#[derive(Debug)]
struct Entry {
    name: &'static str,
    role: Role,
    state: ProgramState,
    /// Detaches when it is dropped.
    link: Option<BtfTracePointLink>,
}

impl Entry {
    fn detach(&mut self) {
        if self.link.take().is_some() {
            self.state = ProgramState::Off;
        }
    }
}

#[derive(Debug)]
pub(crate) struct Programs(Vec<Entry>);

impl Programs {
    /// Loads every program of `ebpf`; fails when a needed one can't be.
    pub(crate) fn load(ebpf: &mut Ebpf, btf: &Btf) -> Result<Programs, Error> {
        let mut entries = Vec::with_capacity(PROGRAMS.len());
        for (name, role) in PROGRAMS {
            let state = match load_one(ebpf, btf, name) {
                Ok(()) => ProgramState::Off,
                Err(error) => judge(error),
            };
            if let (
                Role::Needed | Role::Iterator,
                ProgramState::Missing(reason) | ProgramState::Broken(reason),
            ) = (role, &state)
            {
                return Err(Error::Program { name, reason: reason.clone() });
            }
            entries.push(Entry { name, role, state, link: None });
        }
        Ok(Programs(entries))
    }

    pub(crate) fn status(&self) -> Vec<ProgramStatus> {
        self.0.iter().map(|e| ProgramStatus { name: e.name, state: e.state.clone() }).collect()
    }

    /// Attaches the loaded programs for which `wanted` holds.
    pub(crate) fn attach(&mut self, ebpf: &mut Ebpf, wanted: impl Fn(Role) -> bool) -> Result<(), Error> {
        for entry in self.0.iter_mut().filter(|e| wanted(e.role) && e.state == ProgramState::Off) {
            if let Some(Program::BtfTracePoint(program)) = ebpf.program_mut(entry.name) {
                let id = program.attach()?;
                entry.link = Some(program.take_link(id)?);
                entry.state = ProgramState::Attached;
            }
        }
        Ok(())
    }

    /// Detaches the attached programs for which `unwanted` holds. What runs of them is already under way may
    /// take some microseconds to end.
    pub(crate) fn detach(&mut self, unwanted: impl Fn(Role) -> bool) {
        self.0.iter_mut().rev().filter(|e| unwanted(e.role)).for_each(Entry::detach);
    }

    /// Detaches one program.
    pub(crate) fn detach_one(&mut self, name: &str) {
        self.0.iter_mut().filter(|e| e.name == name).for_each(Entry::detach);
    }

    /// Runs the iterator `name` over all tasks and returns what it wrote.
    pub(crate) fn iterate(&self, ebpf: &mut Ebpf, name: &str) -> Result<Vec<u8>, Error> {
        let Some(Program::Iter(program)) = ebpf.program_mut(name) else { return Ok(Vec::new()) };
        let id = program.attach()?;
        let link = program.take_link(id)?;
        let mut file = link.into_file().map_err(|error| Error::System {
            what: "going through the tasks of this machine",
            source: io::Error::other(error),
        })?;
        let mut written = Vec::new();
        file.read_to_end(&mut written).map_err(Error::system("reading the tasks of this machine"))?;
        Ok(written)
    }
}

fn load_one(ebpf: &mut Ebpf, btf: &Btf, name: &str) -> Result<(), ProgramError> {
    match ebpf.program_mut(name) {
        Some(Program::BtfTracePoint(program)) => program.load(name, btf),
        Some(Program::Iter(program)) => program.load("task", btf),
        _ => Err(ProgramError::UnexpectedProgramType),
    }
}

/// Missing or broken?
fn judge(error: ProgramError) -> ProgramState {
    match error {
        ProgramError::Btf(BtfError::UnknownBtfTypeName { type_name }) => {
            let hook = type_name.trim_start_matches("btf_trace_");
            ProgramState::Missing(format!("this kernel has no tracepoint {hook}"))
        }
        // The privilege is there: it was looked at before anything was loaded.
        ProgramError::LoadError { io_error, .. } if io_error.raw_os_error() == Some(libc::EPERM) => {
            ProgramState::Broken(format!(
                "{io_error}, by lockdown or by a container's filter of system calls"
            ))
        }
        ProgramError::LoadError { io_error, verifier_log } => {
            let log = verifier_log.to_string();
            let last: Vec<&str> =
                log.lines().rev().filter(|l| !l.starts_with("processed ")).take(3).collect();
            let reason = last.into_iter().rev().collect::<Vec<_>>().join("; ");
            ProgramState::Broken(format!("{io_error}: {reason}"))
        }
        error => ProgramState::Broken(in_full(&error)),
    }
}
