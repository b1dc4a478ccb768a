//! Prints what the kernel sees of a process tree, one JSON object a line.
//!
//! `sudo cargo run -p stallscope-ebpf --example trace -- PID [--syscalls] [--seconds N]`

use std::fmt::Write as _;
use std::io::{self, Write as _};
use std::process::ExitCode;
use std::thread::sleep;
use std::time::{Duration, Instant};

use stallscope_abi::kernel::{Blocked, Header, Record, TaskNew, Times};
use stallscope_ebpf::{Error, Kernel, Options};

const USAGE: &str = "usage: trace PID [--syscalls] [--seconds N]";

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("trace: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), Box<dyn std::error::Error>> {
    let mut pid = None;
    let mut seconds = 10.0;
    let mut syscalls = false;
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--syscalls" => syscalls = true,
            "--seconds" => seconds = arguments.next().ok_or(USAGE)?.parse()?,
            number => pid = Some(number.parse().map_err(|_| USAGE)?),
        }
    }
    trace(pid.ok_or(USAGE)?, syscalls, Duration::from_secs_f64(seconds))?;
    Ok(())
}

fn trace(pid: u32, syscalls: bool, length: Duration) -> Result<(), Error> {
    let mut kernel = Kernel::load(&Options::default())?;
    kernel.set_syscalls(syscalls)?;
    for task in kernel.watch(pid)? {
        print(&Record::TaskNew(task));
    }
    let end = Instant::now() + length;
    while Instant::now() < end {
        sleep(Duration::from_millis(20));
        kernel.drain(|bytes, _| {
            if let Some(record) = Record::parse(bytes) {
                print(&record);
            }
        })?;
    }
    let losses = kernel.losses()?;
    println!(r#"{{"losses":{losses:?}}}"#);
    Ok(())
}

fn print(record: &Record) {
    // A reader that has gone is no reason to fail.
    let _ = writeln!(io::stdout().lock(), "{}", json(record));
}

fn json(record: &Record) -> String {
    match record {
        Record::Slice(r) => format!(
            r#"{},"start_ns":{},{},"sibling_cpu_ns":{},"sibling_runnable_ns":{},"rchar":{},"read_bytes":{}}}"#,
            head("slice", &r.header),
            r.start_ns,
            times(&r.times),
            r.sibling_cpu_ns,
            r.sibling_runnable_ns,
            r.rchar,
            r.read_bytes
        ),
        Record::Wait(r) => format!(
            r#"{},"start_ns":{},"waker_tid":{},"waker_tgid":{},"blocked_in":"{}","errand_start_ns":{},"errand_cpu_ns":{},"errand_runnable_ns":{},"errand_read_ns":{}}}"#,
            head("wait", &r.header),
            r.start_ns,
            r.waker_tid,
            r.waker_tgid,
            Blocked::from_u8(r.blocked_in as u8).map(|b| format!("{b:?}")).unwrap_or_default(),
            r.errand_start_ns,
            r.errand_cpu_ns,
            r.errand_runnable_ns,
            r.errand_read_ns
        ),
        Record::Wake(r) => {
            format!(r#"{},"woken_tid":{},"cpu_ns":{}}}"#, head("wake", &r.header), r.woken_tid, r.cpu_ns)
        }
        Record::BatchRead(r) => format!(r#"{},"fd":{}}}"#, head("batch_read", &r.header), r.fd),
        Record::Save(r) => {
            format!(r#"{},"what":{},"bytes":{}}}"#, head("save", &r.header), r.what, r.bytes)
        }
        Record::TaskNew(r) => task("task_new", r),
        Record::TaskExec(r) => task("task_exec", r),
        Record::TaskExit(r) => {
            format!(r#"{},"status":{},{}}}"#, head("task_exit", &r.header), r.status, times(&r.total))
        }
    }
}

fn head(kind: &str, header: &Header) -> String {
    let Header { slot, tid, tgid, time_ns, .. } = header;
    format!(r#"{{"kind":"{kind}","time_ns":{time_ns},"slot":{slot},"tid":{tid},"tgid":{tgid}"#)
}

fn task(kind: &str, record: &TaskNew) -> String {
    let end = record.comm.iter().position(|&byte| byte == 0).unwrap_or(record.comm.len());
    let comm = String::from_utf8_lossy(&record.comm[..end]).escape_default().to_string();
    format!(
        r#"{},"ppid":{},"flags":{},"comm":"{comm}"}}"#,
        head(kind, &record.header),
        record.ppid,
        record.flags
    )
}

/// The times that are not zero.
fn times(times: &Times) -> String {
    let mut text = format!(r#""cpu_ns":{}"#, times.cpu_ns);
    let named = [("cpu_read", times.cpu_read_ns), ("runnable", times.runnable_ns)];
    let blocked = Blocked::ALL.into_iter().map(|kind| (format!("{kind:?}"), times.blocked_ns[kind as usize]));
    for (name, ns) in named.map(|(name, ns)| (name.to_owned(), ns)).into_iter().chain(blocked) {
        if ns > 0 {
            let _ = write!(text, r#","{name}_ns":{ns}"#);
        }
    }
    text
}
