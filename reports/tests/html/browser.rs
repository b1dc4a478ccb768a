//! Debian's chromium, headless, driven over a pair of pipes by its DevTools protocol.

#[path = "../../../tests/support/skipped.rs"]
mod skipped;

use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;
use tempfile::TempDir;

/// Ends a test that would hang; nothing is timed by it.
const LIMIT: Duration = Duration::from_secs(120);

pub(crate) struct Browser {
    process: Child,
    commands: ChildStdin,
    messages: Receiver<Value>,
    session: String,
    last: u64,
    /// What the page did since it was opened: events of the protocol.
    events: Vec<Value>,
    _profile: TempDir,
}

impl Browser {
    /// With one empty page; `None`, loudly, where there is no chromium.
    pub(crate) fn start(test: &str) -> Option<Browser> {
        if !Path::new("/usr/bin/chromium").exists() {
            skipped::skipped(format_args!(
                "{test}: there is no /usr/bin/chromium; as root, `apt-get install chromium` gets it"
            ));
            return None;
        }
        let profile = TempDir::new().expect("a temporary folder");
        let root = Command::new("id").arg("-u").output().is_ok_and(|id| id.stdout == b"0\n");
        let mut process = Command::new("sh")
            // The protocol speaks on descriptors 3 and 4.
            .args(["-c", "exec \"$0\" \"$@\" 3<&0 4>&1 </dev/null >/dev/null", "/usr/bin/chromium"])
            .args(root.then_some("--no-sandbox"))
            .args([
                "--headless",
                "--remote-debugging-pipe",
                "--disable-gpu",
                "--disable-quic",
                "--no-first-run",
            ])
            .args(["--disable-background-networking", "--disable-component-update", "--disable-sync"])
            .args(["--disable-dev-shm-usage", "--hide-scrollbars", "--window-size=1200,900"])
            .arg(format!("--user-data-dir={}", profile.path().display()))
            .env("HOME", profile.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("a shell");
        let commands = process.stdin.take().expect("a pipe");
        let mut replies = BufReader::new(process.stdout.take().expect("a pipe"));
        let (sender, messages) = channel();
        std::thread::spawn(move || {
            let mut message = Vec::new();
            while replies.read_until(0, &mut message).is_ok_and(|read| read > 0) {
                message.pop();
                let Ok(value) = serde_json::from_slice(&message) else { break };
                if sender.send(value).is_err() {
                    break;
                }
                message.clear();
            }
        });
        let mut browser = Browser {
            process,
            commands,
            messages,
            session: String::new(),
            last: 0,
            events: Vec::new(),
            _profile: profile,
        };
        // It may not be let run: without user namespaces it has no sandbox for an ordinary user.
        browser.send("Browser.getVersion", &json!({}));
        if browser.messages.recv_timeout(LIMIT).is_err() {
            skipped::skipped(format_args!(
                "{test}: /usr/bin/chromium does not start here; `chromium --headless` says why"
            ));
            return None;
        }
        let target = browser.call("Target.createTarget", json!({ "url": "about:blank" }))["targetId"].clone();
        let attached = browser.call("Target.attachToTarget", json!({ "targetId": target, "flatten": true }));
        browser.session = attached["sessionId"].as_str().expect("a session").to_owned();
        for domain in ["Page", "Runtime", "Log", "Network"] {
            browser.call(&format!("{domain}.enable"), json!({}));
        }
        Some(browser)
    }

    /// Loads a file and waits until everything in it was loaded.
    pub(crate) fn open(&mut self, file: &Path) {
        self.events.clear();
        self.call("Page.navigate", json!({ "url": format!("file://{}", file.display()) }));
        while !self.events.iter().any(|event| event["method"] == "Page.loadEventFired") {
            let event = self.receive();
            self.events.push(event);
        }
    }

    /// The value of an expression, which JSON can hold.
    pub(crate) fn evaluate(&mut self, expression: &str) -> Value {
        let reply = self.call("Runtime.evaluate", json!({ "expression": expression, "returnByValue": true }));
        assert!(reply["exceptionDetails"].is_null(), "{expression}: {reply}");
        reply["result"]["value"].clone()
    }

    /// As a reader with these preferences sees it; widths are in CSS pixels.
    pub(crate) fn view(&mut self, width: u32, scheme: &str, media: &str) {
        let feature = json!({ "name": "prefers-color-scheme", "value": scheme });
        self.call("Emulation.setEmulatedMedia", json!({ "media": media, "features": [feature] }));
        let metrics = json!({ "width": width, "height": 900, "deviceScaleFactor": 1, "mobile": false });
        self.call("Emulation.setDeviceMetricsOverride", metrics);
    }

    /// Everything the page asked for, by address.
    pub(crate) fn requests(&self) -> Vec<String> {
        let sent = self.events.iter().filter(|event| event["method"] == "Network.requestWillBeSent");
        sent.map(|event| event["params"]["request"]["url"].as_str().unwrap_or_default().to_owned()).collect()
    }

    /// What a developer would see in the console: messages, exceptions, refusals by the page's policy.
    pub(crate) fn console(&self) -> Vec<String> {
        let reports = ["Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded"];
        let events = self.events.iter();
        events
            .filter(|event| reports.iter().any(|method| event["method"] == *method))
            .map(Value::to_string)
            .collect()
    }

    /// Sends a command and waits for its result.
    pub(crate) fn call(&mut self, method: &str, params: Value) -> Value {
        self.send(method, &params);
        loop {
            let mut reply = self.receive();
            if reply["id"] == self.last {
                assert!(reply["error"].is_null(), "{method}: {}", reply["error"]);
                return reply["result"].take();
            }
            self.events.push(reply);
        }
    }

    fn send(&mut self, method: &str, params: &Value) {
        self.last += 1;
        let mut message = json!({ "id": self.last, "method": method, "params": params });
        if !self.session.is_empty() {
            message["sessionId"] = json!(self.session);
        }
        // One that has ended says so by not answering.
        let _ = self.commands.write_all(format!("{message}\0").as_bytes());
    }

    fn receive(&mut self) -> Value {
        self.messages.recv_timeout(LIMIT).expect("chromium answers")
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        let _ = self.commands.write_all(b"{\"id\":0,\"method\":\"Browser.close\"}\0");
        // It removes its own children when it ends by itself; the kill is for one that does not listen.
        for _ in 0..100 {
            if matches!(self.process.try_wait(), Ok(Some(_))) {
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
