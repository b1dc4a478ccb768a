//! A program in a terminal of its own, and what can be seen there.

use super::{Killed, wait_until};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Termios, Winsize, tcgetattr, tcsetwinsize};
use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitStatus};
use std::sync::{Arc, Mutex};

pub(crate) struct Pty {
    master: File,
    /// Held open so that the settings can be looked at after the program has ended.
    slave: File,
    child: Killed,
    screen: Arc<Mutex<vt100::Parser>>,
    /// As the terminal was before the program.
    before: Termios,
}

impl Pty {
    pub(crate) fn start(mut command: Command, columns: u16, lines: u16) -> Pty {
        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
        grantpt(&master).unwrap();
        unlockpt(&master).unwrap();
        let name = ptsname(&master, Vec::new()).unwrap().into_string().unwrap();
        let slave = File::options().read(true).write(true).open(name).unwrap();
        let size = Winsize { ws_row: lines, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
        tcsetwinsize(&slave, size).unwrap();
        let before = tcgetattr(&slave).unwrap();
        for set in [Command::stdin, Command::stdout, Command::stderr] {
            set(&mut command, slave.try_clone().unwrap());
        }
        // What the test itself has set stays.
        let chosen: Vec<_> = command.get_envs().map(|(name, _)| name.to_owned()).collect();
        for (name, value) in [("TERM", "xterm-256color"), ("LC_ALL", "C.UTF-8"), ("NO_COLOR", "")] {
            if chosen.iter().all(|one| one != name) {
                command.env(name, value);
            }
        }
        // SAFETY: both calls are system calls that are allowed between fork and exec.
        unsafe {
            command.pre_exec(|| {
                rustix::process::setsid()?;
                rustix::process::ioctl_tiocsctty(rustix::stdio::stdin())?;
                Ok(())
            });
        }
        let child = Killed(command.spawn().unwrap());
        let master = File::from(master);
        let screen = Arc::new(Mutex::new(vt100::Parser::new(lines, columns, 0)));
        let (mut output, written) = (master.try_clone().unwrap(), screen.clone());
        std::thread::spawn(move || {
            let mut bytes = [0; 65536];
            while let Ok(count @ 1..) = output.read(&mut bytes) {
                written.lock().unwrap().process(&bytes[..count]);
            }
        });
        Pty { master, slave, child, screen, before }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.0.id()
    }

    pub(crate) fn press(&mut self, keys: &str) {
        self.master.write_all(keys.as_bytes()).unwrap();
    }

    pub(crate) fn resize(&mut self, columns: u16, lines: u16) {
        self.screen.lock().unwrap().screen_mut().set_size(lines, columns);
        let size = Winsize { ws_row: lines, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
        tcsetwinsize(&self.master, size).unwrap();
    }

    /// What is on the screen.
    pub(crate) fn text(&self) -> String {
        self.screen.lock().unwrap().screen().contents()
    }

    pub(crate) fn has_colour(&self) -> bool {
        let parser = self.screen.lock().unwrap();
        let screen = parser.screen();
        let (lines, columns) = screen.size();
        let coloured = |cell: &vt100::Cell| {
            cell.fgcolor() != vt100::Color::Default || cell.bgcolor() != vt100::Color::Default
        };
        (0..lines).any(|line| (0..columns).any(|column| screen.cell(line, column).is_some_and(coloured)))
    }

    /// Waits until all of these texts are on the screen together.
    pub(crate) fn wait_for(&self, texts: &[&str]) {
        let mut last = String::new();
        let seen = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            wait_until(&format!("{texts:?} on the screen"), || {
                last = self.text();
                texts.iter().all(|text| last.contains(text))
            });
        }));
        assert!(seen.is_ok(), "the screen was:\n{last}");
    }

    /// Waits for the program's end and fails unless it has left the terminal as it was.
    pub(crate) fn ends_and_restores(&mut self) -> ExitStatus {
        let mut status = None;
        wait_until("the program's end", || {
            status = self.child.0.try_wait().unwrap();
            status.is_some()
        });
        wait_until("the screen of before", || !self.screen.lock().unwrap().screen().alternate_screen());
        let screen = self.screen.lock().unwrap();
        assert!(!screen.screen().hide_cursor(), "the cursor is back");
        assert_eq!(screen.screen().mouse_protocol_mode(), vt100::MouseProtocolMode::None);
        let after = tcgetattr(&self.slave).unwrap();
        assert_eq!(
            (after.input_modes, after.output_modes, after.local_modes),
            (self.before.input_modes, self.before.output_modes, self.before.local_modes)
        );
        status.unwrap()
    }
}
