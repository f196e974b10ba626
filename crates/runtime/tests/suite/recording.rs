//! Recordings of the requests of clients.

use crate::common::client::PATIENCE;
use crate::common::wait_until;
use crate::server::Server;
use forebay_backend::layers::Kinds;
use forebay_nbd::NbdCommand;
use forebay_runtime::{Engine, RecordError, Recorded, Recording, Served, Uncached};
use forebay_types::Mode;

on_both_engines! {
    a_request_that_hangs_is_recorded_without_an_answer,
    a_removed_volume_is_no_longer_recorded,
    a_failed_request_is_recorded_as_an_error,
}

const MIB: u64 = 1 << 20;

/// Closes a recording, and takes all that it has.
fn finish(recording: &mut Recording) -> Vec<Recorded> {
    recording.close();
    let mut all = Vec::new();
    wait_until("the recording is drained", PATIENCE, || {
        all.extend(std::iter::from_fn(|| recording.next_request()));
        recording.is_drained()
    });
    assert_eq!(recording.dropped(), 0);
    all
}

fn record(server: &Server, names: &[&str]) -> Recording {
    let names: Vec<String> = names.iter().map(|name| (*name).into()).collect();
    server.runtime.record(&names).unwrap_or_else(|error| panic!("{error}"))
}

fn a_request_that_hangs_is_recorded_without_an_answer(engine: Engine) {
    let server = Server::start(engine);
    let (gate, _) = server.add_gated("disk", 16 * MIB, Mode::WriteThrough);
    let mut client = server.client("disk");
    let mut recording = record(&server, &["disk"]);
    let busy = server.runtime.record(&["disk".into()]);
    assert!(matches!(busy, Err(RecordError::Busy)));
    gate.close(Kinds::READ);
    let hanging = client.send(NbdCommand::Read, 0, MIB, 4096, &[]);
    wait_until("the read is at the disk", PATIENCE, || gate.held().len() == 1);
    assert_eq!(client.write(2 * MIB, &[1; 512]), Ok(()));
    let all = finish(&mut recording);
    drop(recording);
    let rows: Vec<_> = all.iter().map(|it| (it.is_write, it.offset, it.length)).collect();
    assert_eq!(rows, [(false, MIB, 4096), (true, 2 * MIB, 512)]);
    assert_eq!(all[0].answer, None);
    let through = Served::Uncached(Uncached::WriteThrough);
    assert_eq!(all[1].answer.map(|(_, served)| served), Some(through));
    // Its answer comes while nothing, or something else, is recorded.
    let mut recording = record(&server, &["disk"]);
    gate.open();
    assert_eq!(client.wait(hanging).result, Ok(()));
    assert_eq!(finish(&mut recording), []);
}

fn a_removed_volume_is_no_longer_recorded(engine: Engine) {
    let server = Server::start(engine);
    for name in ["a", "b"] {
        server.add_memory(name, 16 * MIB, Mode::WriteBack);
    }
    let mut recording = record(&server, &["a", "b"]);
    assert_eq!(server.client("a").write(0, &[1; 4096]), Ok(()));
    server.runtime.volumes().remove("a", |_| ()).unwrap();
    // The new volume has the number of the old one.
    server.add_memory("a", 16 * MIB, Mode::WriteBack);
    assert_eq!(server.client("a").write(4096, &[1; 4096]), Ok(()));
    assert_eq!(server.client("b").write(8192, &[1; 4096]), Ok(()));
    let all = finish(&mut recording);
    let rows: Vec<_> = all.iter().map(|it| (it.volume, it.offset)).collect();
    assert_eq!(rows, [(0, 0), (1, 8192)]);
    let unknown = server.runtime.record(&["nix".into()]);
    assert!(matches!(unknown, Err(RecordError::Busy | RecordError::Volume(_))));
}

fn a_failed_request_is_recorded_as_an_error(engine: Engine) {
    let server = Server::start(engine);
    let spec = "error(kind=read):memory:16MiB";
    let disk = forebay_backend::open(spec, &forebay_backend::OpenOptions::default()).unwrap();
    server.add("disk", disk, Mode::WriteThrough);
    let mut recording = record(&server, &["disk"]);
    assert!(server.client("disk").read(0, 4096).is_err());
    let all = finish(&mut recording);
    assert_eq!(all[0].answer.map(|(_, served)| served), Some(Served::Error));
}
