//! The cache's pool and its clients: an answer or the end, and it goes on serving.
#![no_main]

use libfuzzer_sys::fuzz_target;
use stallscope_cache::PolicyKind;
use stallscope_cache::pool::{Client, Settings, serve};
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::OnceLock;
use std::time::Duration;

const KEY: &[u8] = b"a";

struct Pool {
    socket: PathBuf,
    client: Client,
}

fn pool() -> &'static Pool {
    static POOL: OnceLock<Pool> = OnceLock::new();
    POOL.get_or_init(|| {
        let dir = tempfile::tempdir_in("/dev/shm").expect("a folder in memory").keep();
        let (served, socket) = (dir.clone(), dir.join("pool.sock"));
        std::thread::spawn(move || serve(&served, Duration::from_secs(3600)));
        while UnixStream::connect(&socket).is_err() {
            std::thread::sleep(Duration::from_millis(5));
        }
        let client = Client::open(Settings {
            runtime_dir: dir,
            start: Vec::new(),
            key: KEY.to_vec(),
            samples: 1000,
            capacity_bytes: 1 << 20,
            policy: PolicyKind::MinIo,
        });
        Pool { socket, client: client.expect("the pool that has just begun") }
    })
}

/// What a client of the same space says first.
fn greeting() -> Vec<u8> {
    let rest = [&1000_u64.to_ne_bytes()[..], &(1_u64 << 20).to_ne_bytes(), &[1], KEY].concat();
    [&b"stallpoo"[..], &2_u32.to_ne_bytes(), &(rest.len() as u32).to_ne_bytes(), &rest].concat()
}

fuzz_target!(|bytes: &[u8]| {
    let Some((greets, rest)) = bytes.split_first() else { return };
    let Pool { socket, client } = pool();
    let Ok(mut stream) = UnixStream::connect(socket) else { panic!("the pool is gone") };
    let _ = stream.set_read_timeout(Some(Duration::from_secs(5)));
    let message = if greets % 4 == 0 { rest.to_vec() } else { [&greeting()[..], rest].concat() };
    let _ = stream.write_all(&message);
    let _ = stream.shutdown(std::net::Shutdown::Write);
    let mut answers = Vec::new();
    if let Err(error) = stream.read_to_end(&mut answers) {
        assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset, "neither an answer nor the end came");
    }
    assert!(client.is_alive());
});
