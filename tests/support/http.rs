//! As much of HTTP as tests need.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};

pub(crate) struct Answer {
    pub(crate) status: u16,
    /// In lower case.
    pub(crate) head: String,
    pub(crate) body: String,
}

pub(crate) fn get(address: SocketAddr, path: &str) -> Answer {
    get_with(address, "GET", path, "")
}

/// `headers` end with a line break each.
pub(crate) fn get_with(address: SocketAddr, method: &str, path: &str, headers: &str) -> Answer {
    let mut stream = TcpStream::connect(address).unwrap();
    // Of this version, so that no answer comes in chunks.
    write!(stream, "{method} {path} HTTP/1.0\r\nHost: {address}\r\n{headers}\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no answer: {answer:?}"));
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok());
    Answer { status: status.expect("a status"), head: head.to_lowercase(), body: body.to_owned() }
}

/// `text` as a part of a query.
pub(crate) fn encoded(text: &str) -> String {
    text.bytes().map(|byte| format!("%{byte:02x}")).collect()
}
