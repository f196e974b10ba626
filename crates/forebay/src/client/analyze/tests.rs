//! Tests of the reports, over a synthetic analysis.

use super::*;
use forebay_api::{
    Analysis, AnalysisBatch, AnalysisInterruption, AnalysisPhase, AnalysisStatus, AnalysisSubject,
    AnalysisVolume, AnalyzedVolume, LatencySummary, SizeTimes,
};

/// Names may have any characters.
const NAME: &str = "=<b>&\"x";

/// An analysis of 12 intervals in each phase, in which served reads take 1 ms and others `held_ms`.
fn analysis(held_ms: f64) -> Analysis {
    let times = |requests: u64, ms: f64| {
        vec![SizeTimes { up_to_bytes: 4096, requests, seconds: requests as f64 * ms / 1000.0 }]
    };
    let mut batches = Vec::new();
    for phase in AnalysisPhase::ALL {
        for at in 0..12_u64 {
            let is_measured = phase == AnalysisPhase::Measure;
            let (served, held) = if is_measured { (0, 1000) } else { (990 + at, 10 + at % 3) };
            let mean_ms = if is_measured { held_ms } else { 1.0 };
            let reads = served + held;
            let read_latency = LatencySummary {
                count: reads,
                mean_us: mean_ms * 1000.0,
                p99_us: mean_ms * 3000.0,
                ..LatencySummary::default()
            };
            let volume = AnalysisVolume {
                name: NAME.into(),
                served_reads: times(served, 1.0),
                held_reads: times(held, held_ms * (1.0 + 0.01 * (at % 4) as f64)),
                reads,
                read_bytes: reads * 4096,
                read_hits: served,
                read_latency,
                disk_reads: held,
                disk_read_bytes: held * 4096,
                ..AnalysisVolume::default()
            };
            batches.push(AnalysisBatch {
                phase,
                begun_at: format!("2026-02-28T13:{at:02}:00Z"),
                seconds: 60.0,
                cpu_seconds: 6.0,
                volumes: vec![volume],
            });
        }
    }
    let status = AnalysisStatus {
        state: AnalysisState::Complete,
        begun_at: "2026-02-28T13:00:00Z".into(),
        ended_at: Some("2026-02-28T13:36:00Z".into()),
        analyzed_seconds: 36.0 * 60.0,
        batches: 36,
        ..AnalysisStatus::default()
    };
    Analysis { status, batches }
}

#[test]
fn the_summary_says_how_many_times_as_fast_and_how_sure_that_is() {
    let text = text::summary(&AnalysisReport::of(analysis(8.0)));
    let claim = "reads are 8.12 times as fast with the cache as without it (95 % interval 7.";
    assert!(text.contains(&format!("volume '{NAME}': {claim}")), "{text}");
    assert!(text.contains("with held-out regions: 8.12 times as fast"), "{text}");
    assert!(text.contains("mean 1.00 ms with the cache, 8.12 ms without"), "{text}");
    assert!(text.contains("100 % comparable"), "{text}");
    assert!(text.contains("of the reads were hits"), "{text}");
    assert!(!text.contains("writes:"), "there are none: {text}");
    assert!(text.contains("with the phase 'measure': 8.1"), "{text}");
}

#[test]
fn no_measurable_benefit_and_harm_are_verdicts() {
    let none = text::summary(&AnalysisReport::of(analysis(1.0)));
    assert!(none.contains("': no measurable benefit: reads are 1.0"), "{none}");
    let harm = text::summary(&AnalysisReport::of(analysis(0.25)));
    assert!(harm.contains("': the cache does harm: reads are 0.25 times as fast"), "{harm}");
    assert!(harm.contains("slower than without the cache"), "{harm}");
}

#[test]
fn an_analysis_that_is_not_complete_says_so_everywhere() {
    let mut part = analysis(8.0);
    part.batches.truncate(27);
    part.status.state = AnalysisState::Stopped;
    part.status.interruptions = vec![AnalysisInterruption {
        resumed_at: "2026-02-28T15:00:00Z".into(),
        phase: AnalysisPhase::Learn,
    }];
    let report = AnalysisReport::of(part);
    let (text, page) = (text::summary(&report), html::page(&report));
    for shown in [&text, &page] {
        assert!(shown.contains("stopped before its end"), "{shown}");
        assert!(shown.contains("interrupted in the phase 'learn'"), "{shown}");
        assert!(shown.contains("too little data for a verdict"), "three intervals: {shown}");
    }
    let mut none = analysis(8.0);
    none.batches.clear();
    none.status.state = AnalysisState::Running;
    let report = AnalysisReport::of(none);
    assert!(text::summary(&report).contains("no interval is complete yet"));
    assert!(html::page(&report).contains("No interval is complete yet"));
    assert_eq!(csv::table(&report).lines().count(), 1);
}

#[test]
fn the_page_loads_nothing_and_escapes_names() {
    let page = html::page(&AnalysisReport::of(analysis(8.0)));
    for foreign in ["<script", "src=", "href=", "url(", "@import", "http:", "https:"] {
        assert!(!page.contains(foreign), "{foreign}");
    }
    assert!(page.contains("Volume =&lt;b&gt;&amp;&quot;x") && !page.contains("<b>&"), "{page}");
    assert_eq!(page.matches("<svg").count(), 9);
    assert_eq!((page.matches("<svg").count(), page.matches("</svg>").count()), (9, 9));
    assert!(page.contains("8.12 times as fast") && page.contains("@media print"));
    assert!(!page.contains("NaN") && !page.contains("inf"), "{page}");
    let missing = page.lines().filter(|line| line.contains("<path d=\"\"")).count();
    assert_eq!(missing, 1, "only writes have no line");
}

#[test]
fn the_table_and_the_document_have_every_interval() {
    let report = AnalysisReport::of(analysis(8.0));
    let table = csv::table(&report);
    let columns: Vec<usize> = table.lines().map(|line| line.matches(',').count()).collect();
    assert_eq!(columns, [columns[0]; 37]);
    let ratios: Vec<&str> = table.lines().filter_map(|line| line.rsplit(',').next()).collect();
    assert_eq!((ratios[0], ratios[1], ratios[13]), ("times_as_fast", "", "8.000"));
    assert!(
        table.contains("\"'=<b>&\"\"x\",measure,2026-02-28T13:00:00Z,60.000,1000,0"),
        "{table}"
    );
    let document: serde_json::Value = serde_json::from_str(&json::document(&report)).unwrap();
    assert_eq!(document["batches"].as_array().unwrap().len(), 36);
    let volume = &document["volumes"][0];
    assert_eq!((&volume["kind"], &volume["of"]), (&"benefit".into(), &"all".into()));
    assert_eq!(volume["writes"]["kind"], "too-little-data");
    let low = volume["times_as_fast"]["low_95"].as_f64().unwrap();
    assert!((7.0..8.2).contains(&low), "{volume}");
}

/// The server counts no held-out writes of a volume with a journal, for example.
#[test]
fn writes_that_are_not_compared_are_no_lack_of_data() {
    let mut analysis = analysis(8.0);
    let mut with_writes = |requests: u64| {
        for batch in &mut analysis.batches {
            batch.volumes[0].served_writes =
                vec![SizeTimes { up_to_bytes: 4096, requests, seconds: 1.0 }];
        }
        AnalysisReport::of(analysis.clone())
    };
    // Of 12 intervals with 100 writes, one percent would be 12 held-out ones.
    let few = text::summary(&with_writes(100));
    assert!(few.contains("writes: too little data"), "{few}");
    let report = with_writes(1000);
    let text = text::summary(&report);
    assert!(text.contains("writes: not compared: a journal, a UPS or their order"), "{text}");
    assert!(text.contains(": reads are 8."), "of what the verdict is: {text}");
    assert!(html::page(&report).contains("not compared: a journal"));
    assert!(json::document(&report).contains("\"not-compared\""));
}

/// The reason why writes are not compared is that of the volume.
#[test]
fn the_reason_why_writes_are_not_compared_is_that_of_the_configuration() {
    for (protection, ordered, expected) in [
        ("journal", false, "a write past the journal waits for the disk's stable storage"),
        ("journal+ups", false, "a write past the journal"),
        ("ups", false, "while a UPS protects memory"),
        ("journal", true, "the volume destages in order"),
    ] {
        let mut analysis = judged(analysis(8.0));
        for batch in &mut analysis.batches {
            batch.volumes[0].served_writes =
                vec![SizeTimes { up_to_bytes: 4096, requests: 1000, seconds: 1.0 }];
        }
        let subject = analysis.status.subject.as_mut().unwrap();
        let volume = &mut subject.volumes[0];
        (volume.protection, volume.ordered) = (protection.to_owned(), ordered);
        let report = AnalysisReport::of(analysis);
        for shown in [text::summary(&report), html::page(&report), json::document(&report)] {
            assert!(shown.contains(expected), "{protection}: {shown}");
        }
    }
}

/// Deferred writes have no counterpart among those held out.
#[test]
fn writes_from_memory_are_compared_with_the_phase_measure_and_the_report_says_why() {
    let mut analysis = analysis(8.0);
    for batch in &mut analysis.batches {
        let (volume, requests) = (&mut batch.volumes[0], 1000);
        let seconds = if batch.phase == AnalysisPhase::Measure { 8.0 } else { 0.02 };
        let times = vec![SizeTimes { up_to_bytes: 4096, requests, seconds }];
        match batch.phase {
            AnalysisPhase::Measure => volume.held_writes = times,
            _ => (volume.served_writes, volume.deferred_writes) = (times, requests),
        }
        (volume.writes, volume.disk_writes) = (requests, 1000);
    }
    // The first intervals of the phase `measure` destage what was dirty before.
    for batch in &mut analysis.batches[..2] {
        let volume = &mut batch.volumes[0];
        (volume.destages, volume.held_writes[0].seconds) = (500, 30.0);
    }
    let report = AnalysisReport::of(analysis);
    let text = text::summary(&report);
    assert!(text.contains("': reads and writes are "), "{text}");
    assert!(text.contains("not compared with held-out regions: memory acknowledges"), "{text}");
    let measure = report.volumes[0].writes.measure.unwrap();
    assert!((measure.value - 400.0).abs() < 1.0, "{measure:?}");
}

fn judged(analysis: Analysis) -> Analysis {
    let volume = AnalyzedVolume {
        name: NAME.into(),
        backing: "/dev/<disk>".into(),
        size_bytes: 4 << 40,
        rotational: Some(true),
        stripe_bytes: 1 << 20,
        mode: "write-back".into(),
        protection: "journal".into(),
        ordered: false,
        prefetch: true,
    };
    let subject = AnalysisSubject {
        host: "db<1>".into(),
        version: "1.2.3".into(),
        memory_bytes: 64 << 30,
        volumes: vec![volume],
    };
    let status = AnalysisStatus { subject: Some(subject), ..analysis.status };
    Analysis { status, ..analysis }
}

#[test]
fn the_report_says_which_server_and_which_configuration_were_judged() {
    let report = AnalysisReport::of(judged(analysis(8.0)));
    let text = text::summary(&report);
    assert!(text.contains("host db<1>, Forebay 1.2.3, 64 GiB of memory"), "{text}");
    let configuration = "write-back, protection journal, read-ahead on; disk ";
    let disk = "of 4.0 TiB, rotating, stripes of 1.0 MiB";
    assert!(text.contains(&format!("judged: {configuration}/dev/<disk> {disk}")), "{text}");
    let page = html::page(&report);
    assert!(page.contains("Host db&lt;1&gt;, Forebay 1.2.3, 64 GiB of memory."), "{page}");
    assert!(page.contains(&format!("Judged: {configuration}/dev/&lt;disk&gt; {disk}.")), "{page}");
    let document: serde_json::Value = serde_json::from_str(&json::document(&report)).unwrap();
    assert_eq!(document["status"]["subject"]["volumes"][0]["protection"], "journal");
}

#[test]
fn the_page_has_times_of_the_clock_and_dark_colours() {
    let page = html::page(&AnalysisReport::of(analysis(8.0)));
    assert!(page.contains("prefers-color-scheme:dark") && page.contains("color-scheme:light dark"));
    // Each of 36 intervals begins at a minute of an hour, and the page shows six of them.
    for time in [">13:00<", ">13:06<"] {
        assert_eq!(page.matches(time).count() % 9, 0, "{time} in nine charts: {page}");
        assert!(page.contains(time), "{time}: {page}");
    }
    for color in ["#0969da", "#bc4c00"] {
        assert_eq!(page.matches(color).count(), 1, "only in the light colours");
    }
    let of = |seconds: f64| {
        let mut analysis = analysis(8.0);
        analysis.batches.iter_mut().for_each(|batch| batch.seconds = seconds);
        AnalysisReport::of(analysis).times()
    };
    let shown = |seconds: f64| of(seconds).iter().map(|time| time.0.clone()).collect::<Vec<_>>();
    assert_eq!(shown(1.0)[0], "13:00:00");
    assert_eq!((shown(3600.0)[0].as_str(), of(3600.0).len()), ("02-28 13:00", 6));
    assert_eq!(of(3600.0)[1].1, 6.0 * 3600.0);
}

/// Two comparisons that differ are both shown, and the cause is named.
#[test]
fn comparisons_that_differ_are_explained() {
    let mut analysis = analysis(8.0);
    for batch in &mut analysis.batches {
        let is_measured = batch.phase == AnalysisPhase::Measure;
        let volume = &mut batch.volumes[0];
        volume.disk.wait_seconds = batch.seconds * if is_measured { 3.5 } else { 0.5 };
        if is_measured {
            volume.held_reads[0].seconds *= 2.0;
        }
    }
    let report = AnalysisReport::of(analysis);
    for shown in [text::summary(&report), html::page(&report)] {
        assert!(shown.contains("3.5 I/Os in flight without the cache and 0.5 with it"), "{shown}");
    }
    let ratio = report.volumes[0].whole.ratio.unwrap();
    assert!(
        ratio.low < 8.1 && ratio.high > 16.2 && (9.0..14.0).contains(&ratio.value),
        "{ratio:?}"
    );
    let agreeing = text::summary(&AnalysisReport::of(self::analysis(8.0)));
    assert!(!agreeing.contains("these differ"), "{agreeing}");
}

/// The elements of a page are closed in the order in which they were opened.
#[test]
fn the_page_is_well_formed() {
    const ALONE: [&str; 3] = ["meta", "line", "rect"];
    let page = html::page(&AnalysisReport::of(judged(analysis(8.0))));
    let mut open = Vec::new();
    for tag in page.split('<').skip(2).filter_map(|rest| rest.split('>').next()) {
        let name = tag.trim_start_matches('/').split([' ', '/']).next().unwrap();
        if tag.starts_with('/') {
            assert_eq!(open.pop(), Some(name), "{tag}");
        } else if !tag.ends_with('/') && !ALONE.contains(&name) {
            open.push(name);
        }
    }
    assert!(open.is_empty(), "{open:?}");
}

#[test]
fn a_file_that_cannot_be_written_leaves_the_former_one() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("report.html");
    write(&path, "first").unwrap();
    std::fs::create_dir(directory.path().join("report.html.new")).unwrap();
    assert!(write(&path, "second").is_err());
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "first");
    std::fs::remove_dir(directory.path().join("report.html.new")).unwrap();
    write(&path, "second").unwrap();
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "second");
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 1);
}

#[test]
fn lengths_have_units() {
    for (text, seconds) in [("30s", 30), ("10m", 600), ("2h", 7200), ("1d", 86_400)] {
        assert_eq!(length(text), Ok(seconds));
    }
    for wrong in ["", "d", "10", "1w", "-1s", "1.5h", "99999999999999999999d", "1ü"] {
        assert!(length(wrong).unwrap_err().contains("as in 10m"), "{wrong}");
    }
    let shown = [5.0, 65.0, 3_660.0, 90_000.0, -1.0].map(span);
    assert_eq!(shown, ["5 s", "1 min 5 s", "1 h 1 min", "1 d 1 h", "0 s"]);
}
