//! What a job may use while it is tuned.

use clap::Args;
use stallscope_model::Budgets;
use stallscope_units::parse_bytes;

/// Hard limits: what might exceed them is not asked for.
#[derive(Clone, Copy, Debug, Default, Args)]
pub(crate) struct Limits {
    /// CPUs that the job may use at most on this node; by default those that it is allowed
    #[arg(long, value_name = "N", value_parser = cores)]
    pub(crate) cores: Option<f64>,
    /// Memory that the job may use at most on this node (8GiB, 500MB); by default what the machine, or the job's
    /// cgroup, has
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes)]
    pub(crate) memory: Option<u64>,
}

impl Limits {
    pub(crate) fn budgets(self) -> Budgets {
        Budgets { cores: self.cores, memory_bytes: self.memory, ..Budgets::default() }
    }

    pub(crate) fn any(self) -> bool {
        self.cores.is_some() || self.memory.is_some()
    }
}

fn cores(text: &str) -> Result<f64, String> {
    let cores = text.parse::<f64>().ok().filter(|cores| cores.is_finite() && *cores > 0.0);
    cores.ok_or_else(|| "say a number of CPUs above 0, as 4 or 1.5".into())
}

#[cfg(test)]
mod tests {
    use super::cores;

    #[test]
    fn cores_are_a_positive_number() {
        assert_eq!((cores("4"), cores("0.5")), (Ok(4.0), Ok(0.5)));
        for wrong in ["", "0", "-2", "inf", "NaN", "many"] {
            assert!(cores(wrong).is_err(), "{wrong}");
        }
    }
}
