//! The handover between both sides of a socket.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use stallscope_abi::lane::{Bye, Event};
use stallscope_ring::{
    Error, Fact, Greeting, KnobFact, LineReader, LoaderFact, MAX_LINE_BYTES, ProcessKind, RankFact, Reader,
    Received, Writer, send_greeting, send_line, send_lines,
};
use std::io::Write;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;

fn line(reader: &mut LineReader, socket: &UnixStream) -> String {
    match reader.receive(socket.as_fd()).unwrap() {
        Received::Line(line, None) => line,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_greeting_brings_its_lane() {
    let (shim, collector) = UnixStream::pair().unwrap();
    let (mut writer, fd) = Writer::create(4).unwrap();
    let greeting = Greeting {
        stallscope: 1,
        role: "shim".into(),
        pid: 7,
        kind: ProcessKind::Worker,
        rank: RankFact { rank: 3, world_size: 4, local_rank: 1 },
        ..Greeting::default()
    };
    let mut reader = LineReader::default();
    assert!(matches!(reader.receive(collector.as_fd()).unwrap(), Received::WouldBlock));
    send_greeting(shim.as_fd(), &greeting, fd.as_fd()).unwrap();
    writer.push(&Bye {}.encode(9));
    let Received::Line(text, Some(lane)) = reader.receive(collector.as_fd()).unwrap() else {
        panic!("no lane")
    };
    assert_eq!(serde_json::from_str::<Greeting>(&text).unwrap(), greeting);
    let mut found = Vec::new();
    Reader::open(lane)
        .unwrap()
        .drain(u64::MAX, |record| found.push((record.time_ns(), Event::decode(record))));
    assert_eq!(found, [(9, Some(Bye {}.into()))]);
    drop(shim);
    assert!(matches!(reader.receive(collector.as_fd()).unwrap(), Received::Closed));
}

#[test]
fn facts_survive_the_way_in_any_cut() {
    let facts = [
        Fact::Loader(LoaderFact {
            loader: 1,
            workers: 2,
            start_method: "fork".into(),
            ..LoaderFact::default()
        }),
        Fact::Workers { loader: 1, pids: vec![10, 11] },
        Fact::Kind { kind: ProcessKind::Trainer, rank: RankFact::default() },
        Fact::Unavailable { what: "torch 0.1 has no DataLoader".into() },
    ];
    let (shim, collector) = UnixStream::pair().unwrap();
    let text: String = facts.iter().map(|fact| serde_json::to_string(fact).unwrap() + "\n").collect();
    let mut reader = LineReader::default();
    let mut seen = Vec::new();
    for byte in text.as_bytes() {
        (&shim).write_all(&[*byte]).unwrap();
        if let Received::Line(line, None) = reader.receive(collector.as_fd()).unwrap() {
            seen.push(serde_json::from_str::<Fact>(&line).unwrap());
        }
    }
    assert_eq!(seen, facts);
    for fact in &facts {
        send_line(shim.as_fd(), fact).unwrap();
    }
    for fact in &facts {
        assert_eq!(&serde_json::from_str::<Fact>(&line(&mut reader, &collector)).unwrap(), fact);
    }
}

#[test]
fn all_that_a_process_remembers_fits_into_a_socket_that_nobody_reads_yet() {
    let (shim, collector) = UnixStream::pair().unwrap();
    let loaders = (0..256u16).map(|loader| {
        Fact::Loader(LoaderFact { loader, dataset: "ImageFolder".into(), ..LoaderFact::default() })
    });
    let knobs = (0..128).map(|slot| {
        Fact::Knob(KnobFact { slot, name: "prefetch".into(), unit: "batches".into(), ..KnobFact::default() })
    });
    let facts: Vec<Fact> = loaders.chain(knobs).collect();
    send_lines(shim.as_fd(), &facts).unwrap();
    let mut reader = LineReader::default();
    for fact in &facts {
        assert_eq!(&serde_json::from_str::<Fact>(&line(&mut reader, &collector)).unwrap(), fact);
    }
    assert!(matches!(reader.receive(collector.as_fd()).unwrap(), Received::WouldBlock));
}

#[test]
fn what_a_newer_shim_adds_is_tolerated() {
    let greeting: Greeting =
        serde_json::from_str(r#"{"stallscope":2,"role":"shim","kind":"oracle","mood":"good","rank":2}"#)
            .unwrap();
    assert_eq!((greeting.kind, greeting.rank.rank, greeting.rank.world_size), (ProcessKind::Other, 2, 1));
    let fact: Fact = serde_json::from_str(r#"{"fact":"weather","rain":true}"#).unwrap();
    assert_eq!(fact, Fact::Unknown);
}

#[test]
fn an_endless_line_ends_the_conversation() {
    let (shim, collector) = UnixStream::pair().unwrap();
    shim.set_nonblocking(true).unwrap();
    let mut reader = LineReader::default();
    for _ in 0..MAX_LINE_BYTES / 1024 + 8 {
        (&shim).write_all(&[b'x'; 1024]).unwrap();
        match reader.receive(collector.as_fd()) {
            Ok(Received::WouldBlock) => {}
            Err(Error::LineTooLong) => return,
            other => panic!("{other:?}"),
        }
    }
    panic!("the line was taken");
}

#[test]
fn a_line_beyond_the_limit_is_not_sent() {
    let (shim, _collector) = UnixStream::pair().unwrap();
    let fact = Fact::Unavailable { what: "x".repeat(MAX_LINE_BYTES) };
    assert!(matches!(send_line(shim.as_fd(), &fact), Err(Error::LineTooLong)));
}
