//! Where a job runs, as the names of its control groups have it: a Kubernetes pod and container, a Slurm job and step, a unit of
//! systemd. The names are the node's own: jobs without privilege choose none of them, but for units of their own.

use crate::containers::id_in;

/// Of a name, so much is shown.
const MOST_CHARS: usize = 80;
/// Of the number of a container, so much is shown by other tools, too.
const ID_CHARS: usize = 12;

/// In words; empty where the groups have no such name. `paths`: one for each hierarchy.
pub(super) fn of(paths: &[String]) -> String {
    let named = paths.iter().find_map(|path| in_kubernetes(path).or_else(|| in_slurm(path)));
    let named = named.or_else(|| paths.iter().find_map(|path| of_container(path)));
    let named = named.or_else(|| paths.iter().find_map(|path| unit(path)));
    named.unwrap_or_default().chars().take(MOST_CHARS).collect()
}

fn parts(path: &str) -> impl DoubleEndedIterator<Item = &str> {
    path.split('/').filter(|part| !part.is_empty())
}

/// "pod 8f6a…, container 0123456789ab"
fn in_kubernetes(path: &str) -> Option<String> {
    path.contains("kubepods").then_some(())?;
    let pod = parts(path).find_map(|part| {
        // kubepods-burstable-pod8f6a_….slice, with more behind a colon or not, or pod8f6a-… below burstable.
        let part = part.split([':', '.']).next().unwrap_or(part);
        let (before, id) =
            part.rsplit_once("pod").filter(|(_, id)| !id.is_empty() && !id.starts_with('s'))?;
        (before.is_empty() || before.ends_with('-')).then(|| id.replace('_', "-"))
    })?;
    match of_container(path) {
        Some(container) => Some(format!("pod {pod}, {container}")),
        None => Some(format!("pod {pod}")),
    }
}

/// "Slurm job 71, step 0"
fn in_slurm(path: &str) -> Option<String> {
    path.contains("slurm").then_some(())?;
    let named = |what: &str| parts(path).find_map(|part| part.strip_prefix(what));
    let job = named("job_")?;
    match named("step_") {
        Some(step) => Some(format!("Slurm job {job}, step {step}")),
        None => Some(format!("Slurm job {job}")),
    }
}

/// "container 0123456789ab"
fn of_container(path: &str) -> Option<String> {
    let id = parts(path).rev().find_map(id_in)?;
    Some(format!("container {}", &id[..ID_CHARS]))
}

/// "train.service", "session-3.scope"
fn unit(path: &str) -> Option<String> {
    let is_unit = |part: &&str| part.ends_with(".service") || part.ends_with(".scope");
    parts(path).rev().find(is_unit).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn of_one(path: &str) -> String {
        of(&[path.into()])
    }

    #[test]
    fn groups_are_named_as_their_managers_name_them() {
        let id = "0123456789abcdef".repeat(4);
        let pod = "8f6a2c1e-7d3b-4c5a-9e8f-001122334455";
        let slice = format!("kubepods-burstable-pod{}.slice", pod.replace('-', "_"));
        let shown = format!("pod {pod}, container 0123456789ab");
        for path in [
            format!("/kubepods.slice/kubepods-burstable.slice/{slice}/cri-containerd-{id}.scope"),
            format!("/kubepods/burstable/pod{pod}/{id}"),
            format!("/system.slice/containerd.service/{slice}:cri-containerd:{id}"),
        ] {
            assert_eq!(of_one(&path), shown, "{path}");
        }
        for (path, shown) in [
            ("/system.slice/slurmstepd.scope/job_71/step_0/user/task_0", "Slurm job 71, step 0"),
            ("/slurm/uid_1000/job_71/step_batch/task_0", "Slurm job 71, step batch"),
            ("/slurm/uid_1000/job_71", "Slurm job 71"),
            ("/user.slice/user-7.slice/session-3.scope", "session-3.scope"),
            ("/user.slice/user-7.slice/user@7.service/app.slice/train.service", "train.service"),
            ("/kubepods.slice", ""),
            ("/", ""),
            ("", ""),
        ] {
            assert_eq!(of_one(path), shown, "{path}");
        }
        assert_eq!(of_one(&format!("/system.slice/docker-{id}.scope")), "container 0123456789ab");
        assert_eq!(
            of(&["/".into(), "/user.slice/session-3.scope".into(), "/slurm/job_7".into()]),
            "Slurm job 7"
        );
        assert_eq!(of(&[]), "");
    }

    proptest! {
        #[test]
        fn any_path_is_taken(path in "(/(kubepods|pod|slurm|job_|step_|-|é|[a-f0-9]{64}|\\.scope|\\.slice)*){0,6}") {
            prop_assert!(of_one(&path).chars().count() <= MOST_CHARS);
        }
    }
}
