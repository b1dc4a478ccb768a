//! Which sources of evidence are on, and why the others are off.

use stallscope_model::{EvidenceState, PhaseSummary, Probe};
use stallscope_wire::ProgramState;

/// Kernel, its programs, shim, its hooks and the device, as a list for the person who looks after the measurement.
pub(crate) fn all(
    kernel: &EvidenceState,
    programs: &[ProgramState],
    shim: &EvidenceState,
    phases: &[PhaseSummary],
) -> Vec<Probe> {
    let mut probes = vec![match (kernel, programs) {
        (EvidenceState::On, _) | (EvidenceState::Partial(_), [_, ..]) => on("kernel"),
        (EvidenceState::Off, _) => off("kernel", "not asked for"),
        (EvidenceState::Partial(reason) | EvidenceState::Missing(reason), _) => off("kernel", reason),
    }];
    probes.extend(programs.iter().map(|program| Probe {
        name: program.program.clone(),
        on: program.attached,
        reason: program.reason.clone(),
    }));
    match shim {
        EvidenceState::Off => probes.push(off("shim", "not asked for")),
        EvidenceState::Missing(reason) => probes.push(off("shim", reason)),
        EvidenceState::On => probes.extend([on("shim"), on("shim hooks")]),
        EvidenceState::Partial(missing) => probes.extend([on("shim"), off("shim hooks", missing)]),
    }
    let device = phases.iter().any(|phase| phase.hidden_ns.is_some());
    probes.push(match device {
        true => on("device"),
        false => off("device", "no work on a device was seen: waits are host waits"),
    });
    probes
}

fn on(name: &str) -> Probe {
    Probe { name: name.into(), on: true, reason: String::new() }
}

fn off(name: &str, reason: &str) -> Probe {
    Probe { name: name.into(), on: false, reason: reason.into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(probes: &[Probe]) -> Vec<(&str, bool)> {
        probes.iter().map(|probe| (probe.name.as_str(), probe.on)).collect()
    }

    #[test]
    fn what_is_off_says_why() {
        let programs = [
            ProgramState { program: "sched_switch".into(), attached: true, reason: String::new() },
            ProgramState { program: "task_rename".into(), attached: false, reason: "no such hook".into() },
        ];
        let kernel = EvidenceState::Partial("task_rename: no such hook".into());
        let shim = EvidenceState::Partial("dcp could not be hooked".into());
        let probes = all(&kernel, &programs, &shim, &[]);
        assert_eq!(
            names(&probes),
            [
                ("kernel", true),
                ("sched_switch", true),
                ("task_rename", false),
                ("shim", true),
                ("shim hooks", false),
                ("device", false)
            ]
        );
        assert!(probes.iter().all(|probe| probe.on == probe.reason.is_empty()));
    }

    #[test]
    fn a_collector_that_went_away_is_off() {
        let gone = EvidenceState::Partial("the kernel collector went away".into());
        let probes = all(&gone, &[], &EvidenceState::Off, &[]);
        assert_eq!(names(&probes), [("kernel", false), ("shim", false), ("device", false)]);
        assert_eq!(probes[0].reason, "the kernel collector went away");
    }
}
