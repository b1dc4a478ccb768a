//! What a job may use while it is tuned.

use clap::Args;
use stallscope_model::Budgets;

/// Hard limits: what might exceed them is not asked for.
#[derive(Clone, Copy, Debug, Default, Args)]
pub(crate) struct Limits {
    /// CPUs that the job may use at most on this node; by default those that it is allowed
    #[arg(long, value_name = "N", value_parser = cores)]
    pub(crate) cores: Option<f64>,
    /// Memory that the job may use at most on this node (8GiB, 500MB); by default what the machine, or the job's
    /// cgroup, has
    #[arg(long, value_name = "SIZE", value_parser = bytes)]
    pub(crate) memory: Option<u64>,
}

impl Limits {
    pub(crate) fn budgets(self) -> Budgets {
        Budgets { cores: self.cores, memory_bytes: self.memory, descriptors: None }
    }

    pub(crate) fn any(self) -> bool {
        self.cores.is_some() || self.memory.is_some()
    }
}

fn cores(text: &str) -> Result<f64, String> {
    let cores = text.parse::<f64>().ok().filter(|cores| cores.is_finite() && *cores > 0.0);
    cores.ok_or_else(|| "say a number of CPUs above 0, as 4 or 1.5".into())
}

/// Units as people write them, both kinds, by one name a letter too.
const UNITS: [(&str, u64); 14] = [
    ("", 1),
    ("b", 1),
    ("k", 1 << 10),
    ("m", 1 << 20),
    ("g", 1 << 30),
    ("t", 1 << 40),
    ("kib", 1 << 10),
    ("mib", 1 << 20),
    ("gib", 1 << 30),
    ("tib", 1 << 40),
    ("kb", 1_000),
    ("mb", 1_000_000),
    ("gb", 1_000_000_000),
    ("tb", 1_000_000_000_000),
];

/// A size of memory, wherever one is asked for. The Python package reads `cache=` alike.
pub(crate) fn bytes(text: &str) -> Result<u64, String> {
    let number = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = text[number.len()..].to_ascii_lowercase();
    let wrong = || "say a size as 8GiB or 500MB".to_string();
    let (_, each) = UNITS.iter().find(|(name, _)| *name == unit).ok_or_else(wrong)?;
    let number: f64 = number.trim_end().parse().map_err(|_| wrong())?;
    let bytes = number * *each as f64;
    if bytes.is_finite() && bytes >= 1.0 && bytes < u64::MAX as f64 { Ok(bytes as u64) } else { Err(wrong()) }
}

#[cfg(test)]
mod tests {
    use super::{bytes, cores};

    #[test]
    fn sizes_are_read_as_people_write_them() {
        for (text, size) in [
            ("8GiB", 8 << 30),
            ("8g", 8 << 30),
            ("1.5 MiB", 3 << 19),
            ("2T", 2 << 40),
            ("0.5TiB", 1 << 39),
            ("500MB", 500_000_000),
            ("4096", 4096),
            ("2kb", 2_000),
        ] {
            assert_eq!(bytes(text), Ok(size), "{text}");
        }
        for wrong in ["", "GiB", "-1GB", "8 parsecs", "0", "1e400", "NaNGB", "infGB"] {
            assert!(bytes(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn cores_are_a_positive_number() {
        assert_eq!((cores("4"), cores("0.5")), (Ok(4.0), Ok(0.5)));
        for wrong in ["", "0", "-2", "inf", "NaN", "many"] {
            assert!(cores(wrong).is_err(), "{wrong}");
        }
    }
}
