//! A real NUT server with a simulated UPS, in a temporary directory.
//!
//! `dummy-ups` with `mode = dummy-once` keeps the values that are set at run time, for variables
//! that its file has at the start. The driver and `upsd` run in the foreground as children of the
//! test. The `upsd` in the search path is a wrapper that reads the machine's own configuration, so
//! the test runs the real binary.

use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

const PROGRAMS: [&str; 3] = ["/lib/nut", "/usr/libexec/nut", "/usr/lib/nut"];

const SUPPLY: &str = "ups.status: OL\nups.mfr: Lab\nups.model: Dummy\nups.load: 20\n\
                      battery.charge: 100\nbattery.charge.low: 20\nbattery.runtime: 1800\n\
                      battery.runtime.low: 120\n";

const USERS: &str = "[watch]\npassword = watchpw\nupsmon secondary\n\
                     [lab]\npassword = labpw\nactions = SET FSD\nupsmon primary\n";

pub struct NutLab {
    directory: TempDir,
    pub port: u16,
    driver: Option<Child>,
    server: Option<Child>,
}

impl NutLab {
    /// A server with one UPS, `lab`, on mains power and fully charged.
    pub fn start() -> Self {
        let directory = tempfile::tempdir().unwrap();
        // A port that was free a moment ago; the test fails if another process takes it.
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        fs::create_dir(directory.path().join("run")).unwrap();
        fs::create_dir(directory.path().join("etc")).unwrap();
        let run = directory.path().join("run");
        let write = |name: &str, text: &str| {
            let path = directory.path().join("etc").join(name);
            fs::write(&path, text).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
        };
        write(
            "ups.conf",
            "maxretry = 3\npollinterval = 1\n[lab]\ndriver = dummy-ups\nport = lab.dev\n\
             mode = dummy-once\ndesc = \"on paper\"\n",
        );
        write("lab.dev", SUPPLY);
        let state = run.display();
        write("upsd.conf", &format!("LISTEN 127.0.0.1 {port}\nMAXAGE 5\nSTATEPATH {state}\n"));
        write("upsd.users", USERS);
        let mut lab = Self { directory, port, driver: None, server: None };
        lab.start_driver();
        lab.start_server();
        lab
    }

    pub fn start_driver(&mut self) {
        self.driver = Some(self.spawn("dummy-ups", &["-D", "-a", "lab"]));
    }

    pub fn start_server(&mut self) {
        // Without the driver's socket, the server would not find the driver and would retry later.
        let socket = self.directory.path().join("run/dummy-ups-lab");
        wait("the driver's socket", || socket.exists());
        self.server = Some(self.spawn("upsd", &["-D"]));
        let port = self.port;
        wait("the server", || TcpStream::connect(("127.0.0.1", port)).is_ok());
    }

    pub fn kill_driver(&mut self) {
        end(&mut self.driver);
    }

    pub fn kill_server(&mut self) {
        end(&mut self.server);
    }

    pub fn stop_driver(&self, stop: bool) {
        signal(&self.driver, stop);
    }

    pub fn stop_server(&self, stop: bool) {
        signal(&self.server, stop);
    }

    /// Sets a variable of the UPS.
    pub fn set(&self, name: &str, value: &str) {
        let replies = self.say_as("lab", "labpw", &[&format!("SET VAR lab {name} \"{value}\"")]);
        assert_eq!(replies.last().map(String::as_str), Some("OK"), "{name} {value}: {replies:?}");
    }

    /// Orders a forced shutdown, as the primary does.
    pub fn force_shutdown(&self) {
        let replies = self.say_as("lab", "labpw", &["LOGIN lab", "FSD lab"]);
        assert_eq!(replies.last().map(String::as_str), Some("OK FSD-SET"), "{replies:?}");
    }

    /// The number of logged-in machines.
    pub fn logins(&self) -> String {
        self.say(&["GET NUMLOGINS lab"]).remove(0)
    }

    fn say_as(&self, user: &str, password: &str, lines: &[&str]) -> Vec<String> {
        let (user, password) = (format!("USERNAME {user}"), format!("PASSWORD {password}"));
        let mut all = vec![&*user, &*password];
        all.extend_from_slice(lines);
        self.say(&all)
    }

    fn say(&self, lines: &[&str]) -> Vec<String> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(300))).unwrap();
        let mut replies = BufReader::new(stream.try_clone().unwrap()).lines();
        lines
            .iter()
            .map(|line| {
                writeln!(stream, "{line}").unwrap();
                replies.next().unwrap().unwrap()
            })
            .collect()
    }

    fn spawn(&self, name: &str, arguments: &[&str]) -> Child {
        let path = self.directory.path();
        let log = fs::File::create(path.join(format!("{name}.log"))).unwrap();
        Command::new(program(name))
            .args(arguments)
            .args(["-u", &user(path)])
            .env("NUT_CONFPATH", path.join("etc"))
            .env("NUT_STATEPATH", path.join("run"))
            .env("NUT_ALTPIDPATH", path.join("run"))
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .unwrap()
    }
}

impl Drop for NutLab {
    fn drop(&mut self) {
        end(&mut self.server);
        end(&mut self.driver);
    }
}

pub fn wait(what: &str, mut is_there: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !is_there() {
        assert!(begin.elapsed() < Duration::from_secs(300), "timed out waiting for {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn program(name: &str) -> PathBuf {
    let places = PROGRAMS.iter().map(|place| Path::new(place).join(name));
    let found = places.into_iter().find(|path| path.exists());
    found.unwrap_or_else(|| panic!("{name} is missing: install nut-server"))
}

/// The owner of the directory. The programs run as this user.
fn user(directory: &Path) -> String {
    let output = Command::new("stat").args(["-c", "%U"]).arg(directory).output().unwrap();
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

fn signal(child: &Option<Child>, stop: bool) {
    let pid = child.as_ref().and_then(|child| Pid::from_raw(child.id().cast_signed())).unwrap();
    kill_process(pid, if stop { Signal::STOP } else { Signal::CONT }).unwrap();
}

fn end(child: &mut Option<Child>) {
    if let Some(mut child) = child.take() {
        let _ = child.kill();
        let _ = child.wait();
    }
}
