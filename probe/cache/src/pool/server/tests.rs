use super::*;
use crate::PolicyKind;
use crate::pool::{Client, Settings};
use std::thread;

fn settings(dir: &std::path::Path) -> Settings {
    Settings {
        runtime_dir: dir.to_owned(),
        start: vec!["true".into()],
        key: b"a".to_vec(),
        samples: 10,
        capacity_bytes: 1000,
        policy: PolicyKind::MinIo,
    }
}

#[test]
fn a_client_too_many_hears_why_and_starts_no_other_pool() {
    let dir = tempfile::tempdir().unwrap();
    let place = super::super::start::place(dir.path()).unwrap().unwrap();
    let server = thread::spawn(move || {
        let mut server = Server::new(place, Limits::of_this_process(), Duration::from_millis(100));
        server.most_clients = 1;
        server.run()
    });
    let first = Client::open(settings(dir.path())).unwrap();
    let why = Client::open(settings(dir.path())).unwrap_err().to_string();
    assert!(why.contains("descriptors for 1 clients"), "{why}");
    assert!(first.is_alive(), "who is there stays");
    drop(first);
    server.join().unwrap().unwrap();
}
