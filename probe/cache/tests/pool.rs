//! A pool and its clients, over a real socket.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use proptest::prelude::*;
use stallscope_cache::PolicyKind;
use stallscope_cache::pool::{Client, Error, Settings, serve};
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::thread::{self, JoinHandle};
use std::time::Duration;
use tempfile::TempDir;

/// Longer than a busy machine keeps a client from calling.
const LINGER: Duration = Duration::from_secs(1);
const UNKNOWN: u64 = u64::MAX;
/// A limit that no test reaches.
const LONG_MS: u32 = 60_000;

struct Pool {
    dir: TempDir,
    thread: JoinHandle<Result<(), Error>>,
}

impl Pool {
    fn start() -> Pool {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().to_owned();
        Pool { dir, thread: thread::spawn(move || serve(&path, LINGER)) }
    }

    fn client(&self, key: &str, capacity_bytes: u64, policy: PolicyKind) -> Client {
        Client::open(settings(self.dir.path(), key, capacity_bytes, policy)).unwrap()
    }
}

fn settings(dir: &Path, key: &str, capacity_bytes: u64, policy: PolicyKind) -> Settings {
    Settings {
        runtime_dir: dir.to_owned(),
        // The pool is a thread of the test's; until it listens, this has nothing to do.
        start: vec!["true".into()],
        key: key.into(),
        samples: 1000,
        capacity_bytes,
        policy,
    }
}

fn bytes_of(id: u64, tag: u64, length: usize) -> Vec<u8> {
    (0..length as u64).map(|at| (at * 13 + id * 7 + tag * 101) as u8).collect()
}

fn get(client: &Client, id: u64, tag: u64) -> Option<Vec<u8>> {
    let found = client.find(id, tag)?;
    let mut bytes = vec![0; found.bytes()];
    // SAFETY: it has capacity for as many.
    unsafe { found.copy(bytes.as_mut_ptr()) }.then_some(bytes)
}

/// Listens in a folder of this user's that others may write into, as another user: of this thread alone. False without root.
fn listen_as_another(dir: &Path) -> (bool, UnixListener) {
    let listener = UnixListener::bind(dir.join("pool.sock")).unwrap();
    // SAFETY: takes no pointers. Whom a socket is of is noted as it begins to listen.
    let is_another = unsafe {
        let changed = libc::syscall(libc::SYS_setresuid, -1, 4242, -1) == 0;
        assert_eq!(libc::listen(std::os::fd::AsRawFd::as_raw_fd(&listener), 8), 0);
        changed
    };
    (is_another, listener)
}

#[test]
fn a_pool_of_another_user_is_none() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().to_owned();
    let (is_another, listener) = thread::spawn(move || listen_as_another(&path)).join().unwrap();
    if !is_another {
        eprintln!("skipped: it takes root to be another user");
        return;
    }
    let refused = Client::open(settings(dir.path(), "set", 1 << 20, PolicyKind::Lru)).unwrap_err();
    assert!(refused.to_string().contains("another user"), "{refused}");
    let (mut theirs, _) = listener.accept().unwrap();
    let mut heard = Vec::new();
    theirs.read_to_end(&mut heard).unwrap();
    assert!(heard.is_empty(), "it hears nothing");
}

/// Connects in a folder that others may enter, as another user: of this thread alone. `None` without root.
fn connect_as_another(dir: &Path) -> Option<UnixStream> {
    let socket = dir.join("pool.sock");
    for (path, mode) in [(dir, 0o755), (&*socket, 0o777)] {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    }
    // SAFETY: takes no pointers.
    let is_another = unsafe { libc::syscall(libc::SYS_setresuid, -1, 4242, -1) == 0 };
    is_another.then(|| UnixStream::connect(&socket).unwrap())
}

/// Else its connections would take the places of this user's.
#[test]
fn another_user_takes_no_place_in_the_pool() {
    let pool = Pool::start();
    let _own = pool.client("set", 1 << 20, PolicyKind::Lru);
    let dir = pool.dir.path().to_owned();
    let Some(mut theirs) = thread::spawn(move || connect_as_another(&dir)).join().unwrap() else {
        eprintln!("skipped: it takes root to be another user");
        return;
    };
    theirs.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let mut heard = [0];
    assert_eq!(theirs.read(&mut heard).unwrap(), 0, "it is hung up on at once");
}

#[test]
fn what_one_fills_all_find_and_nobody_finds_anothers() {
    let pool = Pool::start();
    let (one, two) = (pool.client("a", 1 << 20, PolicyKind::MinIo), pool.client("a", 1, PolicyKind::MinIo));
    let other = pool.client("b", 1 << 20, PolicyKind::MinIo);
    for (id, length) in [(0, 0), (1, 1), (2, 7), (3, 1024), (4, 4096), (999, 100_001)] {
        assert_eq!(get(&one, id, 5), None);
        assert!(one.claim(id, None, 0) && one.fill(id, 5, &bytes_of(id, 5, length), 0, UNKNOWN));
        assert!(!two.claim(id, None, LONG_MS), "it is there");
        assert_eq!(get(&two, id, 5), Some(bytes_of(id, 5, length)));
        assert_eq!(get(&two, id, 6), None, "of another tag");
        assert_eq!(get(&other, id, 5), None, "of another data set");
    }
    assert_eq!((one.figures().kept_samples, one.figures().clients), (6, 2));
    assert_eq!(one.figures().capacity_bytes, 1 << 20, "who comes later does not change the capacity");
    for id in [1000, u64::from(u32::MAX), u64::MAX] {
        assert!(!one.claim(id, None, 0) && !one.fill(id, 5, b"x", 0, 0) && get(&one, id, 5).is_none());
    }
}

#[test]
fn a_sample_that_was_read_from_elsewhere_takes_the_old_ones_place() {
    let pool = Pool::start();
    let client = pool.client("a", 100_000, PolicyKind::MinIo);
    assert!(client.fill(1, 5, &bytes_of(1, 5, 60_000), 0, 0));
    assert!(client.claim(1, Some(6), 0));
    assert!(client.fill(1, 6, &bytes_of(1, 6, 90_000), 0, 0));
    assert_eq!((get(&client, 1, 5), get(&client, 1, 6)), (None, Some(bytes_of(1, 6, 90_000))));
}

#[test]
fn of_many_who_miss_one_reads_and_the_others_wait_for_it() {
    let pool = Pool::start();
    let client = pool.client("a", 1 << 20, PolicyKind::MinIo);
    for id in 0..20 {
        // Threads of one process, and processes of their own.
        let others: Vec<Client> = (0..3).map(|_| pool.client("a", 1, PolicyKind::MinIo)).collect();
        let read: usize = thread::scope(|scope| {
            let clients = others.iter().chain([&client; 4]);
            let all: Vec<_> = clients
                .map(|client| {
                    scope.spawn(move || {
                        let first = get(client, id, 1).is_none() && client.claim(id, None, LONG_MS);
                        if first {
                            assert!(client.fill(id, 1, &bytes_of(id, 1, 3000), 0, 0));
                        }
                        assert_eq!(get(client, id, 1), Some(bytes_of(id, 1, 3000)));
                        usize::from(first)
                    })
                })
                .collect();
            all.into_iter().map(|one| one.join().unwrap()).sum()
        });
        assert_eq!(read, 1, "sample {id} was read {read} times");
    }
}

#[test]
fn who_claimed_and_is_gone_or_gives_up_leaves_it_to_the_next() {
    let pool = Pool::start();
    let one = pool.client("a", 1 << 20, PolicyKind::MinIo);
    for gives_up in [true, false] {
        let two = pool.client("a", 1, PolicyKind::MinIo);
        assert!(two.claim(1, None, 0));
        assert!(!one.claim(1, None, 20), "it is claimed");
        thread::scope(|scope| {
            let waits = scope.spawn(|| one.claim(1, None, LONG_MS));
            if gives_up {
                two.give_up(1);
            } else {
                drop(two);
            }
            assert!(waits.join().unwrap());
        });
        one.give_up(1);
    }
}

#[test]
fn a_sample_that_cannot_be_kept_is_nobodys_to_wait_for() {
    let pool = Pool::start();
    let (one, two) = (pool.client("a", 10_000, PolicyKind::MinIo), pool.client("a", 1, PolicyKind::MinIo));
    assert!(one.claim(1, None, 0));
    thread::scope(|scope| {
        let waits = scope.spawn(|| two.claim(1, None, LONG_MS));
        assert!(!one.fill(1, 1, &vec![0; 10_001], 0, 0), "larger than the pool");
        // Whether the other asked before or after that.
        if waits.join().unwrap() {
            two.give_up(1);
        }
    });
    assert_eq!((one.figures().refused, one.figures().kept_samples), (1, 0));
}

#[test]
fn a_policy_hears_what_it_needs() {
    let pool = Pool::start();
    let client = pool.client("a", 8192, PolicyKind::Min);
    let fill = |id, at, next_at| client.fill(id, 1, &[1; 4096], at, next_at);
    assert!(fill(1, 0, 100) && fill(2, 1, 50));
    assert!(!fill(3, 2, 200), "is used after both");
    assert!(fill(4, 3, 60) && get(&client, 1, 1).is_none());
    client.used(&[(2, 50, 500)]);
    assert!(fill(5, 51, 400) && get(&client, 2, 1).is_none());
    client.planned(&[(4, 900)]);
    assert!(fill(6, 52, 300) && get(&client, 4, 1).is_none());
    assert_eq!(client.figures().evictions, 3);

    let client = pool.client("b", 8192, PolicyKind::Shade);
    client.scored(&[(1, 3.0), (2, 1.0), (3, 2.0), (4, f64::NAN), (5000, 1.0)]);
    client.epoch();
    for id in [1, 2, 3] {
        assert!(client.fill(id, 1, &[1; 4096], id, UNKNOWN));
    }
    assert!(get(&client, 2, 1).is_none() && !client.fill(4, 1, &[1; 4096], 4, UNKNOWN));
}

#[test]
fn more_than_there_is_memory_is_refused_in_a_sentence() {
    let pool = Pool::start();
    let much = 1 << 55;
    let error =
        Client::open(settings(pool.dir.path(), "a", much, PolicyKind::MinIo)).unwrap_err().to_string();
    assert!(error.contains("ask for less") && error.contains(&much.to_string()), "{error}");
    let client = pool.client("a", 4096, PolicyKind::MinIo);
    assert!(!client.resize(much) && client.resize(8192));
    assert_eq!(client.figures().capacity_bytes, 8192);
    assert!(client.is_alive());
}

#[test]
fn readers_see_whole_samples_while_the_pool_shrinks_grows_and_replaces() {
    const SAMPLES: u64 = 60;
    let pool = Pool::start();
    let client = pool.client("a", 400_000, PolicyKind::Lru);
    let length = |id: u64| 1 + (id * 977 % 20_000) as usize;
    let stop = std::sync::atomic::AtomicBool::new(false);
    let seen = thread::scope(|scope| {
        let (client, stop) = (&client, &stop);
        let readers: Vec<_> = (0..3)
            .map(|reader| {
                scope.spawn(move || {
                    let (mut at, mut seen) = (reader, 0);
                    while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                        at += 1;
                        let (id, tag) = (at * 7 % SAMPLES, at % 3);
                        if let Some(bytes) = get(client, id, tag) {
                            assert!(
                                bytes == bytes_of(id, tag, length(id)),
                                "sample {id} has another's bytes"
                            );
                            seen += 1;
                        }
                    }
                    seen
                })
            })
            .collect();
        for at in 0..4000_u64 {
            let (id, tag) = (at * 31 % SAMPLES, at / 7 % 3);
            client.fill(id, tag, &bytes_of(id, tag, length(id)), at, UNKNOWN);
            if at.is_multiple_of(13) {
                let capacity_bytes = 20_000 + at * 7919 % 500_000;
                assert!(client.resize(capacity_bytes));
                let figures = client.figures();
                assert!(figures.kept_bytes <= capacity_bytes, "{figures:?}");
            }
        }
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
        readers.into_iter().map(|reader| reader.join().unwrap()).sum::<u64>()
    });
    assert!(seen > 100, "only {seen} samples were seen");
}

#[test]
fn a_pool_is_gone_some_time_after_its_last_client() {
    let pool = Pool::start();
    let client = pool.client("a", 100_000, PolicyKind::MinIo);
    assert!(client.fill(1, 1, b"kept", 0, 0));
    drop(client);
    let again = pool.client("a", 50_000, PolicyKind::MinIo);
    assert_eq!(get(&again, 1, 1), Some(b"kept".to_vec()), "who comes back in time finds what was kept");
    assert_eq!(again.figures().capacity_bytes, 50_000, "and says how much it may be");
    drop(again);
    assert!(pool.thread.join().unwrap().is_ok());
    assert!(!pool.dir.path().join("pool.sock").exists());
}

#[test]
fn of_two_pools_one_stays() {
    let pool = Pool::start();
    let client = pool.client("a", 1000, PolicyKind::MinIo);
    assert!(serve(pool.dir.path(), LINGER).is_ok(), "the second ends at once");
    assert!(client.is_alive() && client.fill(1, 1, b"x", 0, 0));
}

#[test]
fn a_folder_with_a_long_path_will_do() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("long".repeat(40));
    let thread = thread::spawn({
        let path = path.clone();
        move || serve(&path, LINGER)
    });
    let client = Client::open(settings(&path, "a", 1000, PolicyKind::MinIo)).unwrap();
    assert!(client.fill(1, 1, b"x", 0, 0) && get(&client, 1, 1).is_some());
    drop(client);
    assert!(thread.join().unwrap().is_ok());
}

fn head(version: u32, length: u32) -> Vec<u8> {
    [&b"stallpoo"[..], &version.to_ne_bytes(), &length.to_ne_bytes()].concat()
}

#[test]
fn another_version_is_named_by_both_sides() {
    let pool = Pool::start();
    let _client = pool.client("a", 1000, PolicyKind::MinIo);
    for other in [1, 77] {
        let mut stream = UnixStream::connect(pool.dir.path().join("pool.sock")).unwrap();
        stream.write_all(&head(other, 4)).unwrap();
        let mut answer = [0; 400];
        let length = stream.read(&mut answer).unwrap();
        let text = String::from_utf8_lossy(&answer[17..length]).into_owned();
        assert!(text.contains("version 2") && text.contains(&format!("version {other}")), "{text}");
    }

    let dir = tempfile::tempdir().unwrap();
    let listener = UnixListener::bind(dir.path().join("pool.sock")).unwrap();
    for (answer, expected) in
        [(head(77, 0), "version 77"), (b"HTTP/1.1 400 Bad Request".to_vec(), "is no pool")]
    {
        let error = thread::scope(|scope| {
            scope.spawn(|| listener.accept().unwrap().0.write_all(&answer).unwrap());
            Client::open(settings(dir.path(), "a", 1000, PolicyKind::MinIo)).unwrap_err().to_string()
        });
        assert!(error.contains(expected), "{error}");
    }
}

/// A greeting that is right, for a space of its own.
fn greeting(key: &[u8]) -> Vec<u8> {
    let rest = [&1000_u64.to_ne_bytes()[..], &100_000_u64.to_ne_bytes(), &[1], key].concat();
    [head(2, rest.len() as u32), rest].concat()
}

#[test]
fn who_says_half_of_something_holds_up_nobody() {
    let pool = Pool::start();
    let client = pool.client("a", 1 << 20, PolicyKind::MinIo);
    let socket = pool.dir.path().join("pool.sock");
    let mut halves = Vec::new();
    for length in [0, 5, 16, 20] {
        let mut stream = UnixStream::connect(&socket).unwrap();
        stream.write_all(&greeting(b"a")[..length]).unwrap();
        halves.push(stream);
    }
    // Claims a sample and asks for more than it ever reads.
    let mut deaf = UnixStream::connect(&socket).unwrap();
    deaf.set_nonblocking(true).unwrap();
    deaf.write_all(&greeting(b"a")).unwrap();
    let claim = [&24_u32.to_ne_bytes()[..], &[1, 0, 0, 0], &[9, 0, 0, 0, 1, 0, 0, 0], &[0; 16]].concat();
    while deaf.write_all(&claim).is_ok() {}
    assert!(client.claim(2, None, LONG_MS) && client.fill(2, 1, b"there", 0, 0));
    drop(deaf);
    assert!(client.claim(1, None, LONG_MS), "what the deaf one claimed is free once it is gone");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn any_bytes_are_an_answer_or_the_end(
        greets: bool,
        bytes in prop::collection::vec(prop_oneof![3 => 0u8..12, 1 => any::<u8>()], 0..400),
        messages in prop::collection::vec((0u8..12, prop::collection::vec(0u8..9, 0..60)), 0..6),
    ) {
        thread_local! {
            static POOL: (Pool, Client) = {
                let pool = Pool::start();
                let client = pool.client("a", 1 << 20, PolicyKind::MinIo);
                (pool, client)
            };
        }
        POOL.with(|(pool, client)| {
            let mut stream = UnixStream::connect(pool.dir.path().join("pool.sock")).unwrap();
            stream.set_write_timeout(Some(Duration::from_secs(60))).unwrap();
            stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
            let mut all = if greets { greeting(b"a") } else { Vec::new() };
            for (kind, rest) in messages {
                all.extend((rest.len() as u32).to_ne_bytes());
                all.extend([kind, 0, 0, 0]);
                all.extend(rest);
            }
            all.extend(bytes);
            // It may be closed in the midst of it.
            let _ = stream.write_all(&all);
            stream.shutdown(std::net::Shutdown::Write).ok();
            let mut answers = Vec::new();
            let ended = stream.read_to_end(&mut answers);
            prop_assert!(
                ended.is_ok() || ended.is_err_and(|error| error.kind() == std::io::ErrorKind::ConnectionReset),
                "neither an answer nor the end came"
            );
            prop_assert!(client.is_alive() && client.fill(999, 1, b"x", 0, 0));
            Ok(())
        })?;
    }
}
