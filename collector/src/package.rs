//! The Python package that goes into jobs: where it is, and whether nobody but its owner and the binary's chooses what is in it.

use anyhow::{Context, Result};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// What runs first in a job, in the folder of the package.
const SHIM: &str = "stallscope/_inject/sitecustomize.py";

const WRITABLE_BY_ALL: u32 = 0o002;
/// Of a folder that all may write to: what is in it is its owner's to replace.
const STICKY: u32 = 0o1000;

/// The folder that holds the Python package `stallscope`.
///
/// # Errors
/// None of the places where an installation puts it has one.
pub fn python_package() -> Result<PathBuf> {
    if let Some(named) =
        std::env::var_os("STALLSCOPE_PYTHON").map(PathBuf::from).filter(|named| has_shim(named))
    {
        return Ok(named.canonicalize()?);
    }
    let exe = std::env::current_exe().ok();
    let found = exe.as_deref().and_then(beside);
    found.context(
        "the Python package of stallscope is not beside its binary, or other users may write to it there; install both with pip, or name its folder in STALLSCOPE_PYTHON"
    )
}

fn has_shim(package: &Path) -> bool {
    package.join(SHIM).is_file()
}

/// The package that an installation has beside its binary `exe`.
fn beside(exe: &Path) -> Option<PathBuf> {
    let exe = exe.canonicalize().ok()?;
    let bin = exe.parent()?;
    let mut places = vec![bin.join("../python")];
    // Beside a wheel's binary: the site-packages of the same environment.
    let versions = fs::read_dir(bin.join("../lib")).into_iter().flatten().flatten();
    // Debian's own pip calls it dist-packages.
    let packages = |version: fs::DirEntry| {
        ["site-packages", "dist-packages"].map(|packages| version.path().join(packages))
    };
    places.extend(versions.flat_map(packages));
    // Whose binary runs already. In a folder within a shared one, as /tmp/stallscope, anybody may have made what lies beside it.
    let trusted = [0, rustix::process::geteuid().as_raw(), fs::metadata(&exe).ok()?.uid()];
    let found =
        places.into_iter().filter(|place| has_shim(place)).filter_map(|place| place.canonicalize().ok());
    found.into_iter().find(|package| is_of(package, &exe, &trusted))
}

/// Whether only `owners` choose what is in `package`, which jobs run. All paths are without links, but for those within the
/// package: where one leads elsewhere, the way to what it leads to counts as well.
fn is_of(package: &Path, exe: &Path, owners: &[u32]) -> bool {
    let Ok(shim) = package.join(SHIM).canonicalize() else { return false };
    // As deep as the shim lies in its package, if no link leads out of that: these are not shared with anybody.
    let own = SHIM.split('/').count();
    let of_shim = shim.ancestors().enumerate().map(|(above, path)| (path, above < own));
    let of_package = package.ancestors().enumerate().map(|(above, path)| (path, above == 0));
    of_shim.chain(of_package).all(|(path, is_own)| is_kept(path, is_own, exe, owners))
}

/// Whether none but `owners` may replace what is at `path`. `is_own`: it is of the package itself, not a folder around it.
fn is_kept(path: &Path, is_own: bool, exe: &Path, owners: &[u32]) -> bool {
    // Who may replace a folder around both can replace the binary.
    if !is_own && exe.starts_with(path) {
        return true;
    }
    let Ok(found) = fs::symlink_metadata(path) else { return false };
    // In a user namespace root may be a user that it does not know.
    let is_roots = || fs::metadata("/").is_ok_and(|root| root.uid() == found.uid());
    let is_open = found.mode() & WRITABLE_BY_ALL != 0;
    let is_kept = !is_open || !is_own && found.mode() & STICKY != 0;
    !found.is_symlink() && is_kept && (owners.contains(&found.uid()) || is_roots())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;
    use std::os::unix::fs::{PermissionsExt, chown, symlink};

    struct Installed(tempfile::TempDir);

    impl Installed {
        fn new() -> Installed {
            let folder = tempfile::tempdir().unwrap();
            let installed = Installed(folder);
            fs::create_dir_all(installed.at("bin")).unwrap();
            fs::write(installed.exe(), "").unwrap();
            installed
        }

        /// Links led on.
        fn at(&self, path: &str) -> PathBuf {
            self.0.path().canonicalize().unwrap().join(path)
        }

        fn exe(&self) -> PathBuf {
            self.at("bin/stallscope")
        }

        fn package(&self, path: &str) -> PathBuf {
            let package = self.at(path);
            fs::create_dir_all(package.join(SHIM).parent().unwrap()).unwrap();
            fs::write(package.join(SHIM), "").unwrap();
            package
        }
    }

    fn open(path: &Path, mode: u32) {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }

    #[test]
    fn a_package_that_somebody_else_put_beside_the_binary_is_not_run() {
        let installed = Installed::new();
        let (exe, package) = (installed.exe(), installed.package("python"));
        let own = fs::metadata(&package).unwrap().uid();
        assert_eq!(beside(&exe), Some(package.clone()));
        assert!(own == 0 || !is_of(&package, &exe, &[own + 1]));
        // Only root may give a folder away.
        for part in ["", "stallscope", "stallscope/_inject", SHIM].map(|part| package.join(part)) {
            if chown(&part, Some(own + 4242), None).is_ok() {
                assert_eq!(beside(&exe), None, "{}", part.display());
                chown(&exe, Some(own + 4242), None).unwrap();
                assert_eq!(beside(&exe), Some(package.clone()), "whose binary it is");
                chown(&exe, Some(own), None).unwrap();
                chown(&part, Some(own), None).unwrap();
            }
        }
    }

    #[test]
    fn a_package_that_everybody_may_write_to_is_not_run() {
        let installed = Installed::new();
        let (exe, package) = (installed.exe(), installed.package("python"));
        for part in ["", "stallscope", "stallscope/_inject", SHIM].map(|part| package.join(part)) {
            let mode = fs::metadata(&part).unwrap().permissions().mode();
            for others in [0o002, 0o1002] {
                open(&part, mode | others);
                assert_eq!(beside(&exe), None, "{}", part.display());
            }
            // A group is its owner's choice.
            open(&part, mode | 0o020);
            assert_eq!(beside(&exe), Some(package.clone()));
            open(&part, mode);
        }
    }

    /// As /tmp/python, for a binary in /tmp/stallscope: to folders of root's in which all may make one of any name.
    #[test]
    fn a_link_beside_the_binary_leads_to_no_shared_folder() {
        let installed = Installed::new();
        let shared = [installed.at("shared"), installed.at("other")];
        shared.iter().for_each(|folder| fs::create_dir(folder).unwrap());
        symlink(&shared[0], installed.at("python")).unwrap();
        symlink(&shared[1], shared[0].join("stallscope")).unwrap();
        fs::create_dir(shared[1].join("_inject")).unwrap();
        fs::write(shared[1].join("_inject/sitecustomize.py"), "").unwrap();
        assert_eq!(beside(&installed.exe()), Some(shared[0].clone()), "all of it is ours");
        for folder in &shared {
            open(folder, 0o1777);
            assert_eq!(beside(&installed.exe()), None, "{}", folder.display());
            open(folder, 0o755);
        }
        // One of theirs around it, which they may exchange later.
        let within = installed.package("theirs/python");
        fs::remove_file(installed.at("python")).unwrap();
        symlink(&within, installed.at("python")).unwrap();
        assert_eq!(beside(&installed.exe()), Some(within));
        if chown(installed.at("theirs"), Some(4242), None).is_ok() {
            assert_eq!(beside(&installed.exe()), None);
        }
    }

    #[test]
    fn a_shared_folder_around_binary_and_package_is_no_hindrance() {
        let installed = Installed::new();
        let package = installed.package("python");
        open(&installed.at(""), 0o777);
        assert_eq!(beside(&installed.exe()), Some(package));
    }
}
