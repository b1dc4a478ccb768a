use serde::{Deserialize, Serialize, de::DeserializeOwned};
use stallscope_model::{AuditEvent, Budgets, Knob, KnobRequest, RunSummary, TuneMode};

/// Version of the messages in this crate.
pub const VERSION: u32 = 1;

/// No JSON line is longer; a peer that sends more is cut off.
pub const LINE_LIMIT_BYTES: usize = 1 << 20;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(
        "the other side sent something that is no stallscope message ({0}); is it another program's socket?"
    )]
    Malformed(String),
    #[error(
        "the other side speaks version {theirs} of the collector's protocol and this stallscope speaks {VERSION}; use the same release on both sides"
    )]
    Version { theirs: u32 },
}

/// First line of every connection.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// [`VERSION`] of the caller.
    pub stallscope: u32,
    #[serde(flatten)]
    pub client: Client,
}

/// Who calls.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "role", rename_all = "lowercase")]
pub enum Client {
    /// A process with the shim; its whole greeting is in `stallscope-ring`.
    Shim,
    /// A terminal or a script: sends [`Request`]s.
    Viewer,
    /// Another `stallscope run` of the same job on this node; stays connected while its own child runs.
    Run { pid: u32 },
    /// A collector that asks the privileged kernel service for evidence of a process tree.
    Kernel {
        watch: u32,
        syscalls: bool,
        /// Where root asks: the user for whom, who is given what that user may know. A collector of an earlier release
        /// does not know of it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        reader: Option<u32>,
    },
    /// Asks the kernel service what it may still do.
    Confinement,
}

impl Hello {
    pub fn new(client: Client) -> Hello {
        Hello { stallscope: VERSION, client }
    }

    /// The caller, when it speaks our version.
    pub fn accept(self) -> Result<Client, Error> {
        if self.stallscope == VERSION {
            Ok(self.client)
        } else {
            Err(Error::Version { theirs: self.stallscope })
        }
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Request {
    /// The state of the run, as the screen at the end shows it.
    Summary,
    /// From a [`Client::Kernel`]: a further process tree of the same job.
    Watch(u32),
    /// Turn knobs, all or none of them; only from the job's owner or root.
    Set(Vec<KnobRequest>),
    /// Let a controller tune the job for as long as this connection stands; only from the job's owner or root.
    Tune {
        mode: TuneMode,
        budgets: Budgets,
        /// Of the node's policy, where that began it in the owner's name.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        rule: Option<u32>,
    },
    /// End the controller that this connection began: it undoes what it has not proven. Answered as [`Request::Set`].
    Stop,
    /// The audit from this line on, a page of it.
    Audit { from: u64 },
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Reply {
    Summary(Box<RunSummary>),
    /// To a [`Client::Run`]: the job's recording.
    Joined {
        recording: String,
    },
    /// To a [`Client::Kernel`]: frames follow.
    Watching(Accepted),
    /// To [`Request::Set`] and [`Request::Stop`]: the knobs as they stand once the job has answered, or has had a second to.
    Knobs(Vec<Knob>),
    /// To [`Request::Tune`]: the controller has begun; the first line of the audit that is its own.
    Tuning {
        from: u64,
    },
    /// To [`Request::Audit`].
    Audit(Vec<AuditEvent>),
    /// To a [`Client::Confinement`].
    Confinement(Vec<Layer>),
    /// One sentence for the person at the terminal.
    Error(String),
}

/// One of the ways in which the kernel service is kept from doing more than it has to.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Layer {
    pub name: String,
    pub in_force: bool,
    /// What it leaves, or why it is not in force.
    pub detail: String,
}

/// What the kernel service can give.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Accepted {
    /// Tasks of the tree that existed already.
    pub tasks: u32,
    pub programs: Vec<ProgramState>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProgramState {
    pub program: String,
    pub attached: bool,
    /// Why it is not attached; empty when it is.
    pub reason: String,
}

/// One JSON line, newline included.
pub fn encode<T: Serialize>(message: &T) -> Vec<u8> {
    let mut line = serde_json::to_vec(message).unwrap_or_else(|error| {
        // Only a map with keys that are no strings or a failing Serialize could get here; no message has either.
        unreachable!("a message of our own is always JSON: {error}")
    });
    line.push(b'\n');
    line
}

/// The message in one line.
pub fn decode<T: DeserializeOwned>(line: &[u8]) -> Result<T, Error> {
    serde_json::from_slice(line).map_err(|error| Error::Malformed(error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hello_survives_the_wire() {
        for client in [
            Client::Shim,
            Client::Viewer,
            Client::Run { pid: 7 },
            Client::Kernel { watch: 4821, syscalls: true, reader: None },
            Client::Kernel { watch: 4821, syscalls: false, reader: Some(1000) },
            Client::Confinement,
        ] {
            let hello = Hello::new(client.clone());
            assert_eq!(decode::<Hello>(&encode(&hello)).unwrap().accept().unwrap(), client);
        }
    }

    #[test]
    fn another_version_gets_a_sentence() {
        let hello: Hello = decode(br#"{"stallscope":9,"role":"viewer","later":true}"#).unwrap();
        assert!(hello.accept().unwrap_err().to_string().contains("version 9"));
    }

    #[test]
    fn garbage_is_an_error() {
        for line in [&b"GET / HTTP/1.1"[..], b"", b"{}", b"{\"stallscope\":1,\"role\":\"king\"}", &[0xff; 9]]
        {
            assert!(decode::<Hello>(line).is_err());
        }
    }
}
