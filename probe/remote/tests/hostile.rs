//! A store that answers as none should.

#![allow(clippy::unwrap_used, reason = "a test that cannot set itself up fails")]

use stallscope_pack::{Objects, Wanted};
use stallscope_remote::Remote;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

/// A server, and what it was asked: first lines with all headers.
struct Server {
    address: String,
    asked: Arc<Mutex<Vec<String>>>,
}

impl Server {
    /// `answers`: to a path and a range, all that is sent, and then the connection ends.
    fn start(answers: impl Fn(&str, Option<(u64, u64)>, &mut TcpStream) + Send + 'static) -> Server {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let asked: Arc<Mutex<Vec<String>>> = Arc::default();
        let server = Server { address, asked: asked.clone() };
        std::thread::spawn(move || {
            for mut stream in listener.incoming().flatten() {
                let lines = BufReader::new(stream.try_clone().unwrap()).lines();
                let head: Vec<String> =
                    lines.map_while(Result::ok).take_while(|line| !line.is_empty()).collect();
                let path =
                    head.first().and_then(|line| line.split(' ').nth(1)).unwrap_or_default().to_owned();
                let range = head
                    .iter()
                    .find_map(|line| line.to_lowercase().strip_prefix("range: bytes=").map(str::to_owned));
                let range = range.and_then(|range| {
                    let (begin, end) = range.split_once('-')?;
                    Some((begin.parse().ok()?, end.parse().ok()?))
                });
                asked.lock().unwrap().push(head.join("\n"));
                answers(&path, range, &mut stream);
            }
        });
        server
    }

    fn pack(&self) -> Remote {
        Remote::new(&format!("http://{}/p.pack", self.address)).unwrap()
    }

    fn asked(&self) -> usize {
        self.asked.lock().unwrap().len()
    }
}

fn partial(stream: &mut TcpStream, (begin, end): (u64, u64), size: u64, more: &str, body: &[u8]) {
    let head = format!(
        "HTTP/1.1 206 Partial Content\r\nConnection: close\r\nContent-Length: {}\r\nLast-Modified: Thu, 01 Jan 2026 00:00:00 GMT\r\nContent-Range: bytes {begin}-{end}/{size}\r\n{more}\r\n",
        body.len()
    );
    let _ = stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(body));
}

fn sentence_of(remote: &Remote, most_bytes: u64) -> String {
    remote.whole("snapshot", most_bytes).unwrap_err().to_string()
}

/// What only this machine reaches was asked by whatever store a job reads from.
#[test]
fn nobody_is_sent_elsewhere() {
    let inside = Server::start(|_, range, stream| partial(stream, range.unwrap(), 8, "", b"credenti"));
    let to = inside.address.clone();
    let store = Server::start(move |path, _, stream| {
        let to = if path.ends_with("snapshot") { to.as_str() } else { "169.254.169.254" };
        let answer = format!(
            "HTTP/1.1 307 Moved\r\nLocation: http://{to}/role\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
        );
        let _ = stream.write_all(answer.as_bytes());
    });
    let sentence = sentence_of(&store.pack(), 1 << 20);
    assert!(sentence.contains("redirects are not followed"), "{sentence}");
    let wanted = [Wanted { name: "some.chunk".into(), range: 0..8 }];
    let sentence = store.pack().read(&wanted).pop().unwrap().unwrap_err().to_string();
    assert!(sentence.contains("redirects are not followed"), "{sentence}");
    assert_eq!((store.asked(), inside.asked()), (2, 0));
}

#[test]
fn no_more_is_taken_into_memory_than_there_may_be() {
    let store = Server::start(|_, range, stream| {
        let (begin, end) = range.unwrap();
        partial(stream, (begin, end), 1 << 50, "", &vec![7; (end + 1 - begin) as usize]);
    });
    let sentence = sentence_of(&store.pack(), 100 << 20);
    assert!(sentence.contains("1125899906842624 bytes, and at most 104857600"), "{sentence}");
    assert_eq!(store.asked(), 1, "it is not read to the bound");
}

#[test]
fn what_a_header_has_is_not_shown() {
    let store = Server::start(|_, _, stream| {
        let lie = format!("bytes zero-{}", "x".repeat(50_000));
        let head = format!(
            "HTTP/1.1 206 Partial Content\r\nConnection: close\r\nContent-Length: 4\r\nLast-Modified: Thu, 01 Jan 2026 00:00:00 GMT\r\nContent-Range: {lie}\r\n\r\nabcd"
        );
        let _ = stream.write_all(head.as_bytes());
    });
    let sentence = sentence_of(&store.pack(), 1 << 20);
    assert!(sentence.len() < 600 && !sentence.contains(char::is_control), "{} bytes", sentence.len());
}
