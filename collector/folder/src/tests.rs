#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use super::*;
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};

#[test]
fn own_links_lead_on_and_what_is_missing_is_made() {
    let root = tempfile::tempdir().unwrap();
    let at = |path: &str| root.path().join(path);
    fs::create_dir(at("a")).unwrap();
    symlink("a", at("relative")).unwrap();
    symlink(at("relative"), at("absolute")).unwrap();
    symlink(at("absolute/b"), at("dangling")).unwrap();
    assert_eq!(Folder::open(&at("absolute/b")).unwrap_err(), Blocked::System(Errno::NOENT));
    for path in ["absolute/b/c", "dangling/../b/d", "./a//b/e/", "new/er"] {
        Folder::make(&at(path)).unwrap();
        Folder::open(&at(path)).unwrap();
    }
    assert_eq!(fs::read_dir(at("a/b")).unwrap().count(), 3);
    assert!(!Folder::open(&at("a")).unwrap().is_empty() && Folder::open(&at("new/er")).unwrap().is_empty());
}

#[test]
fn what_is_no_folder_is_refused() {
    let root = tempfile::tempdir().unwrap();
    let at = |path: &str| root.path().join(path);
    fs::write(at("file"), "").unwrap();
    symlink("file", at("link")).unwrap();
    symlink("there", at("here")).unwrap();
    symlink("here", at("there")).unwrap();
    let cases =
        [("file", Errno::NOTDIR), ("file/x", Errno::NOTDIR), ("link", Errno::NOTDIR), ("here", Errno::LOOP)];
    for (path, reason) in cases {
        assert_eq!(Folder::open(&at(path)).unwrap_err(), Blocked::System(reason), "{path}");
        assert!(Folder::make(&at(path)).is_err(), "{path}");
    }
}

/// All may write to /tmp, and a link there may lead to any folder of this user's.
#[test]
fn another_users_link_leads_nowhere() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let root = tempfile::tempdir().unwrap();
    let (theirs, own) = (root.path().join("theirs"), root.path().join("own"));
    symlink(root.path(), &theirs).unwrap();
    std::os::unix::fs::lchown(&theirs, Some(4343), Some(4343)).unwrap();
    symlink(&theirs, &own).unwrap();
    for link in [theirs.clone(), own, theirs.join("new")] {
        assert_eq!(Folder::open(&link).unwrap_err(), Blocked::AnothersLink);
        assert_eq!(Folder::make(&link).unwrap_err(), Blocked::AnothersLink);
    }
    assert!(!root.path().join("new").exists());
}

#[test]
fn what_is_put_in_its_place_later_is_not_written_into() {
    let root = tempfile::tempdir().unwrap();
    let at = |path: &str| root.path().join(path);
    fs::create_dir(at("elsewhere")).unwrap();
    fs::write(at("elsewhere/kept"), "").unwrap();
    let folder = Folder::make(&at("out")).unwrap();
    fs::rename(at("out"), at("was")).unwrap();
    symlink(at("elsewhere"), at("out")).unwrap();
    folder.create_new("a".as_ref()).unwrap();
    folder.rename("a".as_ref(), "b".as_ref()).unwrap();
    folder.create("lock".as_ref()).unwrap();
    folder.create("lock".as_ref()).unwrap();
    folder.sync().unwrap();
    assert!(folder.create_new("b".as_ref()).is_err() && folder.remove("kept".as_ref()).is_err());
    assert!(at("was/b").exists() && at("was/lock").exists());
    assert_eq!(fs::read_dir(at("elsewhere")).unwrap().count(), 1);
}

#[test]
fn no_link_or_pipe_is_opened_and_nothing_replaced_unasked() {
    let root = tempfile::tempdir().unwrap();
    let folder = Folder::open(root.path()).unwrap();
    symlink(root.path().join("made"), root.path().join("link")).unwrap();
    rustix::fs::mknodat(&folder, "pipe", FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
    for name in ["link", "pipe"] {
        assert!(folder.create(name.as_ref()).is_err(), "{name}");
    }
    fs::write(root.path().join("a"), "a").unwrap();
    fs::write(root.path().join("b"), "b").unwrap();
    assert!(folder.rename_new("a".as_ref(), "b".as_ref()).is_err());
    assert!(folder.rename_new("a".as_ref(), "link".as_ref()).is_err());
    folder.rename_new("a".as_ref(), "c".as_ref()).unwrap();
    assert!(folder.has("link".as_ref()) && !folder.has("made".as_ref()) && !folder.has("a".as_ref()));
}

/// The content that is read at `path`, by a user who may read everything.
fn read(path: &Path) -> Result<String, Blocked> {
    let found = find(None, path)?;
    let (top, below) = (fs::File::open("/").unwrap(), path.strip_prefix("/").unwrap());
    assert!(find(Some(top.as_fd()), below).is_ok());
    let itself = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&found));
    Ok(fs::read_to_string(itself).unwrap())
}

#[test]
fn another_users_link_leads_to_what_that_user_may_read() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let root = tempfile::tempdir().unwrap();
    let at = |path: &str| root.path().join(path);
    let theirs = |path: &str| std::os::unix::fs::lchown(at(path), Some(4343), Some(4343)).unwrap();
    let mode = |path: &str, mode| fs::set_permissions(at(path), fs::Permissions::from_mode(mode)).unwrap();
    mode("", 0o755);
    for folder in ["source", "private", "open"] {
        fs::create_dir(at(folder)).unwrap();
        fs::write(at(folder).join("file"), folder).unwrap();
        mode(&format!("{folder}/file"), 0o644);
        mode(folder, 0o755);
    }
    mode("private", 0o700);
    for (name, target) in [("secret", "../private/file"), ("folder", "../private"), ("well", "../open/file")]
    {
        symlink(target, at("source").join(name)).unwrap();
        symlink(target, at("source").join(format!("own-{name}"))).unwrap();
        theirs(&format!("source/{name}"));
    }
    symlink("secret", at("source/twice")).unwrap();
    for path in ["source/secret", "source/folder", "source/folder/file", "source/twice"] {
        assert_eq!(find(None, &at(path)).unwrap_err(), Blocked::AnothersLink, "{path}");
    }
    for (path, content) in [
        ("source/file", "source"),
        ("source/well", "open"),
        ("source/own-secret", "private"),
        ("source/own-folder/file", "private"),
    ] {
        assert_eq!(read(&at(path)).unwrap(), content, "{path}");
    }
    mode("open/file", 0o640);
    assert_eq!(find(None, &at("source/well")).unwrap_err(), Blocked::AnothersLink);
    theirs("open/file");
    assert_eq!(read(&at("source/well")).unwrap(), "open");
    assert_eq!(find(None, &at("source/missing")).unwrap_err(), Blocked::System(Errno::NOENT));
}
