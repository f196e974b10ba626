//! Tests against a Ceph cluster, whose configuration file is in `FOREBAY_CEPH`. Without it they say
//! that they are skipped. `scripts/ceph.sh` starts a cluster for them.

use super::*;
use crate::{AlignedBuffer, Blocking, conformance};
use forebay_types::Fault;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Instant;

/// A cluster for tests.
struct Cluster(String);

/// An image that is removed at the end.
struct TestImage<'a> {
    cluster: &'a Cluster,
    place: String,
}

impl Cluster {
    /// The cluster for the tests; `None` if there is none.
    fn get() -> Option<Self> {
        let conf = std::env::var("FOREBAY_CEPH").ok();
        if conf.is_none() {
            println!("skipped: FOREBAY_CEPH does not name the configuration of a Ceph cluster");
        }
        conf.map(Self)
    }

    /// Runs a program of Ceph, and returns its output.
    fn run(&self, program: &str, arguments: &[&str]) -> String {
        let output = Command::new(program).arg("-c").arg(&self.0).args(arguments).output().unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{program} {arguments:?}: {errors}");
        String::from_utf8(output.stdout).unwrap()
    }

    fn image(&self, size: &str, arguments: &[&str]) -> TestImage<'_> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let place = format!("rbd/test-{}-{number}", std::process::id());
        self.run("rbd", &[&["create", &place, "--size", size], arguments].concat());
        TestImage { cluster: self, place }
    }
}

impl TestImage<'_> {
    fn name(&self) -> String {
        format!("rbd:{}@{}", self.place, self.cluster.0)
    }

    fn open(&self) -> Result<RbdBackend, RbdError> {
        RbdBackend::open(&self.name(), &OpenOptions::default())
    }
}

impl Drop for TestImage<'_> {
    fn drop(&mut self) {
        self.cluster.run("rbd", &["rm", "--no-progress", &self.place]);
    }
}

#[test]
#[ignore = "needs a Ceph cluster"]
fn tool_ceph_image_passes_the_suite() {
    let Some(cluster) = Cluster::get() else { return };
    let striped = ["--object-size", "1M", "--stripe-unit", "64K", "--stripe-count", "4"];
    let plain = ["--image-feature", "layering,exclusive-lock"];
    for (arguments, stripe_bytes) in [(&[][..], 4 << 20), (&striped, 64 << 10), (&plain, 4 << 20)] {
        let image = cluster.image("64M", arguments);
        let backend = image.open().unwrap();
        let description = backend.description();
        assert_eq!(description.size_bytes(), 64 << 20);
        assert_eq!(description.geometry.stripe_bytes, stripe_bytes);
        let range = ByteRange::new(0, 64 << 20);
        assert_eq!(backend.extents(range), [Extent { len: 64 << 20, hole: true, zero: true }]);
        let backend: Arc<dyn Backend> = Arc::new(backend);
        conformance::check(&backend);
        assert!(backend.extents(range).iter().any(|extent| !extent.hole));
        drop(backend);
    }
}

/// Writes a file, and returns its path.
fn write(directory: &tempfile::TempDir, name: &str, text: &str) -> String {
    let path = directory.path().join(name);
    std::fs::write(&path, text).unwrap();
    path.display().to_string()
}

/// The message of opening `name`.
fn message(name: &str) -> String {
    RbdBackend::open(name, &OpenOptions::default()).err().unwrap().explained()
}

#[test]
#[ignore = "needs a Ceph cluster"]
fn tool_ceph_errors_name_the_thing_and_the_remedy() {
    let Some(cluster) = Cluster::get() else { return };
    let conf = &cluster.0;
    let directory = tempfile::tempdir().unwrap();
    let text = std::fs::read_to_string(conf).unwrap();
    let without_key = text.replace("keyring =", "keyring = /none/keyring #");
    let without_key = write(&directory, "without-key.conf", &without_key);
    let wrong = write(
        &directory,
        "keyring",
        "[client.admin]\nkey = AQBJqGlnAAAAABAAxDs0bdMMSXrLPWBN1XZ4Ng==\n",
    );
    let wrong_key = text.replace("keyring =", &format!("keyring = {wrong} #"));
    let wrong_key = write(&directory, "wrong-key.conf", &wrong_key);
    let host = text.lines().find(|line| line.starts_with("mon_host")).unwrap();
    let no_monitor =
        write(&directory, "no-monitor.conf", &text.replace(host, "mon_host = 127.0.0.1:1"));
    let nonsense = write(&directory, "nonsense.conf", "[global\nmon host\n");
    for (name, parts) in [
        (format!("rbd:none/i@{conf}"), ["there is no pool 'none'", "osd pool ls"]),
        (format!("rbd:rbd/none@{conf}"), ["there is no image 'rbd/none'", "ls rbd"]),
        (
            format!("rbd:rbd/i@{}", directory.path().join("none.conf").display()),
            ["none.conf", "No such file"],
        ),
        (format!("rbd:rbd/i@{nonsense}"), ["cannot read Ceph's configuration", "nonsense.conf"]),
        (format!("rbd:rbd/i@{without_key}"), ["/none/keyring (No such file", "auth get"]),
        (format!("rbd:rbd/i@{conf}?user=me"), ["client.me", "no [client.me]"]),
        (format!("rbd:rbd/i@{wrong_key}"), ["refuses the key of client.admin", "keyring"]),
        (format!("rbd:rbd/i@{no_monitor}"), ["no monitor", "127.0.0.1:1"]),
    ] {
        let message = message(&name);
        println!("{message}");
        assert!(parts.iter().all(|part| message.contains(part)), "{name}: {message}");
    }
    let plain = cluster.image("16M", &["--image-feature", "layering"]);
    assert!(message(&plain.name()).contains("rbd feature enable"), "{}", message(&plain.name()));
    let cached = cluster.image("16M", &[]);
    cluster.run("rbd", &["config", "image", "set", &cached.place, "rbd_cache", "true"]);
    let text = message(&cached.name());
    assert!(text.contains(&format!("config image remove {} rbd_cache", cached.place)), "{text}");
}

#[test]
#[ignore = "needs a Ceph cluster"]
fn tool_ceph_image_has_one_user() {
    let Some(cluster) = Cluster::get() else { return };
    let image = cluster.image("16M", &[]);
    let backend = image.open().unwrap();
    let text = message(&image.name());
    assert!(text.contains("is in use here, as 'rbd:"), "{text}");
    drop(backend);
    // Closed, it can be opened again at once.
    drop(image.open().unwrap());
}

#[test]
#[ignore = "needs a Ceph cluster"]
fn tool_ceph_a_look_at_an_image_sees_what_its_owner_writes_and_leaves_it_the_lock() {
    let Some(cluster) = Cluster::get() else { return };
    let image = cluster.image("16M", &[]);
    let owner = image.open().unwrap();
    let locks = || cluster.run("rbd", &["lock", "ls", &image.place]);
    let (before, tenure) = (locks(), owner.tenure());
    let observed = RbdBackend::open(&image.name(), &OpenOptions::observing()).unwrap();
    for round in 1..4_u8 {
        let (mut written, mut seen) = (AlignedBuffer::new(4096), AlignedBuffer::new(4096));
        written.fill(round);
        Blocking::new(&owner).write(4096, &written, false).unwrap();
        Blocking::new(&observed).read(4096, &mut seen).unwrap();
        assert!(*seen == *written, "nothing is cached in round {round}");
    }
    assert_eq!((locks(), owner.tenure()), (before, tenure));
    assert!(!observed.is_taken_over() && observed.tenure().is_none());
    drop(owner);
    // Nor does it keep the owner from opening the image again.
    drop(image.open().unwrap());
}

/// What the next test runs in another process: opens an image, and keeps it open.
#[test]
#[ignore = "needs a Ceph cluster"]
fn tool_ceph_image_is_held() {
    let Ok(name) = std::env::var(HELD) else { return };
    let _backend = RbdBackend::open(&name, &OpenOptions::default()).unwrap();
    println!("held");
    std::thread::sleep(Duration::from_secs(600));
}

/// The name of the image to be held.
const HELD: &str = "FOREBAY_CEPH_HELD";

/// Has another process open an image, and keep it open.
fn hold(image: &TestImage<'_>) -> Child {
    let mut holder = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "rbd::tests::tool_ceph_image_is_held", "--ignored", "--nocapture"])
        .env(HELD, image.name())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(holder.stdout.take().unwrap()).lines();
    assert!(lines.map_while(Result::ok).any(|line| line.contains("held")));
    holder
}

#[test]
#[ignore = "needs a Ceph cluster"]
fn tool_ceph_image_of_a_living_process_is_taken_over() {
    let Some(cluster) = Cluster::get() else { return };
    let image = cluster.image("16M", &[]);
    let mut holder = hold(&image);
    assert!(matches!(image.open(), Err(RbdError::Locked { .. })));
    let taking = OpenOptions { takes_over: true, ..OpenOptions::default() };
    let backend = RbdBackend::open(&image.name(), &taking).unwrap();
    let tenure = backend.tenure().unwrap();
    assert_eq!(tenure.former.len(), 1, "that of the holder");
    Blocking::new(&backend).write(0, &[7; 4096], true).unwrap();
    let shut_out = cluster.run("ceph", &["osd", "blocklist", "ls"]);
    let year = shut_out.lines().filter_map(|line| line.split_whitespace().nth(1)?.get(..4)).max();
    let now = String::from_utf8(Command::new("date").arg("+%Y").output().unwrap().stdout).unwrap();
    assert!(year.unwrap() > now.trim(), "{shut_out}");
    // The next opening follows this one, until the image is told that nobody needs that.
    drop(backend);
    let next = image.open().unwrap().tenure().unwrap();
    assert_eq!(next.former, [vec![tenure.own], tenure.former].concat());
    let settled = image.open().unwrap();
    settled.settle_tenure().unwrap();
    let own = settled.tenure().unwrap().own;
    drop(settled);
    assert_eq!(image.open().unwrap().tenure().unwrap().former, [own]);
    holder.kill().unwrap();
    holder.wait().unwrap();
}

#[test]
#[ignore = "needs a Ceph cluster"]
fn tool_ceph_lock_of_a_killed_process_is_broken_at_once() {
    let Some(cluster) = Cluster::get() else { return };
    let image = cluster.image("16M", &[]);
    let mut holder = hold(&image);
    let text = message(&image.name());
    let process = format!("(process {} of Forebay on ", holder.id());
    assert!(text.contains("is locked by the client at ") && text.contains(":0/"), "{text}");
    assert!(text.contains(&process) && text.contains("forebay takeover"), "{text}");
    let read_only = OpenOptions { read_only: true, ..OpenOptions::default() };
    let error = RbdBackend::open(&image.name(), &read_only).err().unwrap();
    assert!(matches!(error, RbdError::Locked { .. }), "{error}");
    holder.kill().unwrap();
    let begun = Instant::now();
    // A zombie counts as gone. `forebay rescue` lists a journal that a killed server has left.
    while let Err(error) = RbdBackend::open(&image.name(), &read_only) {
        assert!(begun.elapsed() < Duration::from_secs(5), "{error}");
    }
    let backend = image.open().unwrap();
    assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
    Blocking::new(&backend).write(0, &[7; 4096], false).unwrap();
    holder.wait().unwrap();
    drop(backend);
    assert!(RbdBackend::open(&image.name(), &read_only).is_ok());
}

#[test]
#[ignore = "needs a Ceph cluster"]
fn tool_ceph_image_grows() {
    let Some(cluster) = Cluster::get() else { return };
    let image = cluster.image("16M", &[]);
    let backend = image.open().unwrap();
    assert_eq!(backend.measure(0).unwrap(), 16 << 20);
    cluster.run("rbd", &["resize", "--no-progress", &image.place, "--size", "32M"]);
    assert_eq!(backend.measure(0).unwrap(), 32 << 20);
    backend.description().size.grow(32 << 20);
    let bytes = [7; 4096];
    Blocking::new(&backend).write((32 << 20) - 4096, &bytes, true).unwrap();
    let shrink = ["resize", "--no-progress", &image.place, "--size", "8M", "--allow-shrink"];
    cluster.run("rbd", &shrink);
    assert!(matches!(backend.measure(0), Err(MeasureError::Shrunk { to: 8_388_608, .. })));
}

#[test]
#[ignore = "needs a Ceph cluster"]
fn tool_ceph_broken_lock_is_final_for_all_images_of_the_connection() {
    let Some(cluster) = Cluster::get() else { return };
    let [disk, journal, other] = [(); 3].map(|()| cluster.image("16M", &[]));
    let backends = [(&disk, "one"), (&journal, "one"), (&other, "two")].map(|(image, text)| {
        let connection = vec![text.to_owned()];
        RbdBackend::open(&image.name(), &OpenOptions { connection, ..Default::default() }).unwrap()
    });
    let bytes = [7; 4096];
    for backend in &backends {
        Blocking::new(backend).write(0, &bytes, false).unwrap();
    }
    let lock = cluster.run("rbd", &["lock", "ls", &disk.place]);
    let line = lock.lines().find(|line| line.contains("client.")).unwrap();
    let client = line.split_whitespace().find(|word| word.starts_with("client.")).unwrap();
    let id = line.split_whitespace().skip_while(|word| *word != client).skip(1);
    let id: Vec<&str> = id.take(2).collect();
    cluster.run("rbd", &["lock", "rm", &disk.place, &id.join(" "), client]);
    // Without any I/O.
    let until = Instant::now() + Duration::from_secs(20);
    while backends[1].check_presence().is_ok() {
        assert!(Instant::now() < until, "the lock is lost, and nothing notices");
        std::thread::sleep(Duration::from_millis(10));
    }
    for backend in &backends[..2] {
        assert_eq!(backend.check_presence(), Err(Displaced::TakenOver));
        let mut back = [0; 4096];
        assert!(Blocking::new(backend).write(0, &bytes, false).is_err());
        assert!(Blocking::new(backend).read(0, &mut back).is_err());
    }
    assert_eq!(backends[2].check_presence(), Ok(()));
    Blocking::new(&backends[2]).write(0, &bytes, false).unwrap();
}
