//! The record of which volumes rely on a journal.

use crate::journal::{JOURNAL_BYTES, MIB, block, journal_settings, memory, power_loss, start};
use crate::server::{Server, in_mode, settings};
use forebay_backend::Backend;
use forebay_runtime::{
    Engine, Journal, JournalId, JournalRecord, Missing, VolumeError, VolumeJournal, VolumeSettings,
};
use forebay_types::{Durability, Fault, Mode};
use std::io;
use std::sync::{Arc, Mutex};

/// A state directory: the volumes that rely on a journal, the volumes that were served without it,
/// and a switch that makes the directory fail.
#[derive(Default)]
struct Record {
    relies: Mutex<Vec<(JournalId, String)>>,
    superseded: Mutex<Vec<String>>,
    given_up: Mutex<bool>,
    fails: Mutex<bool>,
}

impl Record {
    fn relying(&self) -> Vec<String> {
        self.relies.lock().unwrap().iter().map(|(_, volume)| volume.clone()).collect()
    }
}

impl JournalRecord for Record {
    fn elsewhere(&self, volume: &str, named: Option<JournalId>) -> Option<Missing> {
        let relies = self.relies.lock().unwrap();
        let mut others = relies.iter().filter(|(id, name)| name == volume && Some(*id) != named);
        let is_given_up = *self.given_up.lock().unwrap();
        others.next().map(|_| Missing { name: "/j".to_owned(), is_given_up })
    }

    fn rely(&self, journal: JournalId, _: &str, volume: &str) -> io::Result<()> {
        if *self.fails.lock().unwrap() {
            return Err(io::ErrorKind::StorageFull.into());
        }
        self.release(journal, volume)?;
        self.relies.lock().unwrap().push((journal, volume.to_owned()));
        Ok(())
    }

    fn release(&self, journal: JournalId, volume: &str) -> io::Result<()> {
        self.relies.lock().unwrap().retain(|(id, name)| (*id, &name[..]) != (journal, volume));
        Ok(())
    }

    fn supersede(&self, volume: &str, named: Option<JournalId>) -> io::Result<()> {
        if *self.fails.lock().unwrap() {
            return Err(io::ErrorKind::StorageFull.into());
        }
        if self.elsewhere(volume, named).is_some() {
            self.relies.lock().unwrap().retain(|(id, name)| name != volume || Some(*id) == named);
            self.superseded.lock().unwrap().push(volume.to_owned());
        }
        Ok(())
    }
}

fn begin(record: &Arc<Record>) -> Server {
    let server = start(Engine::Epoll);
    server.runtime.volumes().protectors().keep_journal_record(Arc::clone(record) as _);
    server
}

fn open(server: &Server, device: &Arc<dyn Backend>) -> Arc<Journal> {
    server
        .runtime
        .volumes()
        .protectors()
        .open_journal(journal_settings(Arc::clone(device)))
        .unwrap()
}

fn add(
    server: &Server,
    disk: &Arc<dyn Backend>,
    journal: Option<&Arc<Journal>>,
    mode: Mode,
) -> Result<(), VolumeError> {
    let journal = journal.map(|journal| VolumeJournal {
        journal: Arc::clone(journal),
        durability: Durability::Ack,
        identity: [1; 32],
        accept_disk: false,
    });
    let settings = VolumeSettings { journal, ..settings("v", Arc::clone(disk), mode) };
    server.runtime.volumes().add(settings).map(drop)
}

#[test]
fn reliance_on_a_journal_is_recorded_before_the_first_write_and_until_the_last() {
    let record = Arc::new(Record::default());
    let (disk, device): (Arc<dyn Backend>, Arc<dyn Backend>) =
        (memory(8 * MIB), memory(JOURNAL_BYTES));
    let server = begin(&record);
    let journal = open(&server, &device);
    add(&server, &disk, Some(&journal), Mode::WriteThrough).unwrap();
    assert!(record.relying().is_empty(), "the disk has all acknowledged data");
    // The volume is not served before the record is durable.
    *record.fails.lock().unwrap() = true;
    let error = server.runtime.volumes().change("v", in_mode(Mode::WriteBack), false).unwrap_err();
    assert!(error.explained().contains("state directory"), "{error}");
    *record.fails.lock().unwrap() = false;
    server.set_mode("v", Mode::WriteBack);
    assert_eq!(record.relying(), ["v"]);
    server.runtime.volumes().remove("v", |_| ()).unwrap();
    assert!(record.relying().is_empty());
    add(&server, &disk, Some(&journal), Mode::WriteBack).unwrap();
    server.client("v").write(0, &block(1)).unwrap();
    assert_eq!(record.relying(), ["v"]);
    let ([disk_then], [journal_then]) = power_loss([&*disk], [&*device]);
    server.stop();
    assert!(record.relying().is_empty());

    // The records in a journal count in any mode, even if this record is missing.
    let (disk, device): (Arc<dyn Backend>, Arc<dyn Backend>) = (disk_then, journal_then);
    let server = begin(&record);
    let journal = open(&server, &device);
    add(&server, &disk, Some(&journal), Mode::WriteThrough).unwrap();
    assert_eq!(record.relying(), ["v"]);
    server.stop();
}

#[test]
fn a_volume_recorded_with_another_journal_is_refused_until_its_loss_is_accepted() {
    let record = Arc::new(Record::default());
    let lost = JournalId([7; 16]);
    record.rely(lost, "/j", "v").unwrap();
    let (disk, device): (Arc<dyn Backend>, Arc<dyn Backend>) =
        (memory(8 * MIB), memory(JOURNAL_BYTES));
    let server = begin(&record);
    let journal = open(&server, &device);
    for journal in [None, Some(&journal)] {
        let error = add(&server, &disk, journal, Mode::WriteThrough).unwrap_err().explained();
        for part in ["volume 'v'", "journal /j", "accept the lost journal of 'v'"] {
            assert!(error.contains(part), "{part}: {error}");
        }
    }
    assert!(record.superseded.lock().unwrap().is_empty());
    *record.given_up.lock().unwrap() = true;
    add(&server, &disk, Some(&journal), Mode::WriteBack).unwrap();
    assert_eq!(*record.superseded.lock().unwrap(), ["v"]);
    assert_eq!(record.relying(), ["v"]);
    assert!(record.relies.lock().unwrap().iter().all(|(id, _)| *id != lost));
    server.stop();
}

#[test]
fn an_addition_that_cannot_be_recorded_leaves_no_volume_behind() {
    let record = Arc::new(Record::default());
    let (disk, device): (Arc<dyn Backend>, Arc<dyn Backend>) =
        (memory(8 * MIB), memory(JOURNAL_BYTES));
    let server = begin(&record);
    let journal = open(&server, &device);
    for (journal, mode) in [(None, Mode::WriteThrough), (Some(&journal), Mode::WriteBack)] {
        *record.fails.lock().unwrap() = true;
        let error = add(&server, &disk, journal, mode).unwrap_err();
        assert!(error.explained().contains("state directory"), "{error}");
        assert!(server.runtime.status().unwrap().volumes.is_empty());
        let removed = server.runtime.volumes().remove("v", |_| ());
        assert!(matches!(removed, Err(VolumeError::Unknown(_))), "{removed:?}");
        *record.fails.lock().unwrap() = false;
        add(&server, &disk, journal, mode).unwrap();
        server.client("v").write(0, &block(1)).unwrap();
        server.runtime.volumes().remove("v", |_| ()).unwrap();
    }
    server.stop();
}
