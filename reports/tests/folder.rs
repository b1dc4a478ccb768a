//! A report goes into the folder that was looked at, whatever comes in its place while the recording is read.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use madeup::{Shape, record};
use stallscope_reports::target::{self, Kind, Target};
use stallscope_reports::{Run, csv, html, write_whole};
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

/// A folder in another, and one elsewhere that has the same name.
struct Scene {
    root: tempfile::TempDir,
}

impl Scene {
    fn new() -> Scene {
        let root = tempfile::tempdir().unwrap();
        for folder in ["shared/tables", "elsewhere/tables"] {
            fs::create_dir_all(root.path().join(folder)).unwrap();
        }
        Scene { root }
    }

    fn at(&self, path: &str) -> PathBuf {
        self.root.path().join(path)
    }

    fn run(&self) -> Run {
        Run::open(&[record(&self.at("run.stall"), &Shape { seconds: 3, ..Shape::default() })]).unwrap()
    }

    /// Who may write to the folder around `path` puts a link in its place.
    fn swap(&self, path: &str, link_to: &str) {
        fs::rename(self.at(path), self.at("moved")).unwrap();
        symlink(self.at(link_to), self.at(path)).unwrap();
    }
}

fn count(folder: &Path) -> usize {
    fs::read_dir(folder).unwrap().count()
}

const HTML: Kind = Kind { ending: ".html", read_at_once: false, binary: false };

#[test]
fn tables_go_into_the_folder_that_was_looked_at() {
    let scene = Scene::new();
    let run = scene.run();
    let place = target::folder("-csv", Some(&scene.at("shared/tables")), "run").unwrap();
    scene.swap("shared/tables", "elsewhere");
    csv::write(&run, &place.open().unwrap()).unwrap();
    assert_eq!(count(&scene.at("elsewhere")), 1);
    assert!(scene.at("moved/steps.csv").is_file());
}

#[test]
fn they_do_so_where_a_folder_around_it_moves() {
    let scene = Scene::new();
    let run = scene.run();
    let place = target::folder("-csv", Some(&scene.at("shared/tables")), "run").unwrap();
    scene.swap("shared", "elsewhere");
    csv::write(&run, &place.open().unwrap()).unwrap();
    assert_eq!(count(&scene.at("elsewhere/tables")), 0);
    assert!(scene.at("moved/tables/steps.csv").is_file());
}

#[test]
fn a_page_goes_into_the_folder_that_was_looked_at() {
    let scene = Scene::new();
    let run = scene.run();
    let Target::File(place) = target::file(HTML, Some(&scene.at("shared/tables")), "run", false).unwrap()
    else {
        panic!("a file was asked for");
    };
    scene.swap("shared", "elsewhere");
    write_whole(&place, |out| html::write(&run, out)).unwrap();
    assert_eq!(count(&scene.at("elsewhere/tables")), 0);
    assert_eq!(count(&scene.at("moved/tables")), 1);
}

/// A link in the middle of a path finds the folder as one at its end does.
#[test]
fn another_users_link_on_the_way_is_refused() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let scene = Scene::new();
    let link = scene.at("link");
    symlink(scene.at("elsewhere"), &link).unwrap();
    for path in ["link/tables", "link/../elsewhere/tables"] {
        assert!(target::folder("-csv", Some(&scene.at(path)), "run").is_ok());
    }
    std::os::unix::fs::lchown(&link, Some(4343), Some(4343)).unwrap();
    for path in ["link/tables", "link/../elsewhere/tables"] {
        let path = scene.at(path);
        assert!(target::folder("-csv", Some(&path), "run").is_err());
        assert!(target::file(HTML, Some(&path), "run", false).is_err());
    }
}

/// It has come to a name of the path while the recording was read.
#[test]
fn a_folder_is_not_made_behind_another_users_link() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let scene = Scene::new();
    let run = scene.run();
    let place = target::folder("-csv", Some(&scene.at("shared/new/tables")), "run").unwrap();
    let link = scene.at("shared/new");
    symlink(scene.at("elsewhere"), &link).unwrap();
    std::os::unix::fs::lchown(&link, Some(4343), Some(4343)).unwrap();
    let written = place.open().and_then(|folder| csv::write(&run, &folder));
    assert!(written.is_err());
    assert_eq!(count(&scene.at("elsewhere/tables")), 0);
}
