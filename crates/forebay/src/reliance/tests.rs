use super::*;
use forebay_runtime::{JournalRecord, VaultRecord};

const ONE: u64 = 7;
const OTHER: u64 = u64::MAX;
const JOURNAL: JournalId = JournalId([0xa5; 16]);
const FRESH: JournalId = JournalId([0; 16]);

#[test]
fn reliance_on_a_vault_is_recorded_until_released() {
    let directory = tempfile::tempdir().unwrap();
    let given_up = GivenUp { vaults: vec!["b".to_owned()], ..GivenUp::default() };
    let reliances = Reliances::new(directory.path(), Some("/v"), given_up);
    let records: &dyn VaultRecord = &reliances;
    for name in ["a", "b", "a volume"] {
        assert_eq!(records.elsewhere(name, None), None);
        records.rely(ONE, name, false).unwrap();
        assert_eq!(records.elsewhere(name, Some(ONE)), None, "the vault is open");
    }
    let missing = |name: &str, open| records.elsewhere(name, open).map(|m| m.is_given_up);
    for open in [None, Some(OTHER)] {
        assert_eq!(missing("a volume", open), Some(false));
        assert_eq!(missing("b", open), Some(true));
        assert_eq!(missing("volume", open), None);
    }
    assert_eq!(records.elsewhere("a", None).unwrap().name, "/v");
    assert_eq!(reliances.relying_on_vault("/v").unwrap(), ["a", "a volume"]);
    records.release(ONE, "a volume").unwrap();
    assert_eq!(missing("a volume", None), None);
    // Serving "b" without the vault voids the vault's data, until "b" relies on it again.
    records.supersede("b", Some(OTHER)).unwrap();
    assert_eq!(missing("b", None), None);
    let is_void = |name| records.is_superseded(ONE, name).unwrap();
    assert!(is_void("b") && !is_void("a"));
    records.rely(ONE, "b", false).unwrap();
    assert!(!is_void("b"));
    records.supersede("b", Some(ONE)).unwrap();
    assert!(!is_void("b"), "the open vault is not superseded");
    records.release(ONE, "b").unwrap();
    records.release(ONE, "a").unwrap();
    assert_eq!(
        std::fs::read_dir(directory.path()).unwrap().count(),
        0,
        "an empty record is removed"
    );
}

#[test]
fn a_journaled_volume_relies_on_the_vault_only_after_its_journal_fails() {
    let directory = tempfile::tempdir().unwrap();
    let reliances = Reliances::new(directory.path(), Some("/v"), GivenUp::default());
    let records: &dyn VaultRecord = &reliances;
    records.rely(ONE, "a", true).unwrap();
    records.rely(ONE, "b", true).unwrap();
    assert_eq!(records.elsewhere("a", None), None);
    reliances.journal_failed(JOURNAL, &["a".to_owned(), "c".to_owned()]).unwrap();
    assert!(records.elsewhere("a", None).is_some());
    assert!(records.elsewhere("b", None).is_none() && records.elsewhere("c", None).is_none());
    records.release(ONE, "b").unwrap();
    reliances.journal_failed(JOURNAL, &["b".to_owned()]).unwrap();
    assert_eq!(records.elsewhere("b", None), None, "volume b was released");
}

#[test]
fn a_damaged_record_applies_to_every_volume_and_is_never_overwritten() {
    let directory = tempfile::tempdir().unwrap();
    let reliances = Reliances::new(directory.path(), Some("/v"), GivenUp::default());
    let records: &dyn VaultRecord = &reliances;
    let path = Holder::Vault(ONE).record(directory.path()).path().to_owned();
    for text in ["", "vault /v\n", "vault /v\nrelies a\nlines 2\n", "vault /v\nlines 0", "x\n"] {
        std::fs::write(&path, text).unwrap();
        assert!(records.elsewhere("z", None).is_some(), "{text:?}");
        let read = records.is_superseded(ONE, "z").map(drop);
        for error in [read, records.rely(ONE, "z", false), records.supersede("z", None)] {
            assert!(error.unwrap_err().to_string().contains("move it away"), "{text:?}");
        }
        assert_eq!(std::fs::read_to_string(&path).unwrap(), text);
    }
}

#[test]
fn an_unreadable_state_directory_applies_to_every_volume() {
    // Not a directory: an error even for root.
    let file = tempfile::NamedTempFile::new().unwrap();
    let reliances = Reliances::new(file.path(), Some("/v"), GivenUp::default());
    let (vaults, journals): (&dyn VaultRecord, &dyn JournalRecord) = (&reliances, &reliances);
    assert!(vaults.elsewhere("a", None).is_some() && journals.elsewhere("a", None).is_some());
    assert!(vaults.supersede("a", None).is_err() && journals.supersede("a", None).is_err());
    assert!(reliances.relying_on_vault("/v").is_err());
    assert!(reliances.relying_on_journal("/j").is_err());
}

#[test]
fn reliance_on_a_journal_is_recorded_until_released() {
    let directory = tempfile::tempdir().unwrap();
    let given_up = GivenUp { journals: vec!["b".to_owned()], ..GivenUp::default() };
    let reliances = Reliances::new(directory.path(), None, given_up);
    let records: &dyn JournalRecord = &reliances;
    for name in ["a", "b", "a volume"] {
        assert_eq!(records.elsewhere(name, None), None);
        records.rely(JOURNAL, "/j and /k", name).unwrap();
        assert_eq!(records.elsewhere(name, Some(JOURNAL)), None, "the journal is configured");
    }
    for named in [None, Some(FRESH)] {
        let missing = |name: &str| records.elsewhere(name, named).map(|m| (m.name, m.is_given_up));
        assert_eq!(missing("a"), Some(("/j and /k".to_owned(), false)));
        assert_eq!(missing("b"), Some(("/j and /k".to_owned(), true)));
        assert_eq!(missing("volume"), None);
    }
    assert_eq!(reliances.relying_on_journal("/j and /k").unwrap(), ["a", "a volume"]);
    assert!(reliances.relying_on_journal("/j").unwrap().is_empty());
    let of_vault = reliances.relying_on_vault("/j and /k").unwrap();
    assert!(of_vault.is_empty(), "the name is a journal's");
    // Serving "b" without the journal voids the journal's data of "b" and of no other volume.
    let mark = || marks::read(&marks::of_journal(directory.path(), &JOURNAL.to_string())).unwrap();
    records.supersede("b", Some(JOURNAL)).unwrap();
    assert_eq!(mark(), None, "the configured journal is not superseded");
    records.supersede("b", Some(FRESH)).unwrap();
    assert!(mark().unwrap().voids("b") && !mark().unwrap().voids("a"));
    assert_eq!(records.elsewhere("b", None), None);
    assert!(records.elsewhere("a", None).is_some());
    records.release(JOURNAL, "a").unwrap();
    records.release(JOURNAL, "a volume").unwrap();
    assert_eq!(records.elsewhere("a", None), None);
    assert!(
        !Holder::Journal(JOURNAL).record(directory.path()).path().exists(),
        "an empty record is removed"
    );
}

#[test]
fn a_failure_mark_overrides_reliance_on_the_journal() {
    let directory = tempfile::tempdir().unwrap();
    let reliances = Reliances::new(directory.path(), None, GivenUp::default());
    let records: &dyn JournalRecord = &reliances;
    records.rely(JOURNAL, "/j", "a").unwrap();
    records.rely(JOURNAL, "/j", "b").unwrap();
    let mark = marks::of_journal(directory.path(), &JOURNAL.to_string());
    marks::put(&mark, "no space", &["a".to_owned()]).unwrap();
    // The mark alone suffices, in case of a crash before the reliance record is updated.
    assert_eq!(records.elsewhere("a", None), None);
    assert_eq!(reliances.relying_on_journal("/j").unwrap(), ["b"]);
    reliances.journal_failed(JOURNAL, &["a".to_owned()]).unwrap();
    std::fs::remove_file(mark.path()).unwrap();
    assert_eq!(records.elsewhere("a", None), None);
    assert!(records.elsewhere("b", None).is_some());
}
