use super::*;

fn parse(text: &str) -> Result<Trace, TraceError> {
    Trace::parse(Path::new("dir/small.csv.zst"), text.as_bytes())
}

fn problem(rows: &str) -> (u64, LineProblem) {
    match parse(&format!("{HEADER}\n{rows}")) {
        Err(TraceError::Line { line, problem, .. }) => (line, problem),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_trace_is_read_line_by_line() {
    let trace = parse(&format!("{HEADER}\n0,0,R,4095,2\n7,3,W,512,512\r\n9,0,0,0,4096")).unwrap();
    assert_eq!(trace.name, "small");
    assert_eq!(trace.requests.len(), 3);
    assert_eq!(trace.requests[0].blocks(), 0..=1);
    assert_eq!(trace.requests[2].blocks(), 0..=0);
    let second =
        Request { time_us: 7, offset_bytes: 512, length_bytes: 512, volume: 3, op: Op::Write };
    assert_eq!(trace.requests[1], second);
}

#[test]
fn a_bad_line_is_reported_with_number_and_problem() {
    let good = "0,0,R,0,4096\n";
    let fields = |found| LineProblem::FieldCount { expected: 5, found };
    let number = |field, text: &str, max| LineProblem::Number { field, text: text.into(), max };
    for (row, expected) in [
        ("", fields(1)),
        ("1,2,R,4", fields(4)),
        ("1,2,R,4,5,6", fields(6)),
        ("x,2,R,4,5", number("time_us", "x", u64::MAX)),
        ("1,+2,R,4,5", number("volume", "+2", u32::MAX.into())),
        ("1,4294967296,R,4,5", number("volume", "4294967296", u32::MAX.into())),
        ("1,2,r,4,5", LineProblem::Op("r".into())),
        ("1,2,R,,5", number("offset_bytes", "", u64::MAX)),
        ("1,2,R,4,0", LineProblem::Empty),
        ("1,2,R,18446744073709551615,1", LineProblem::TooFar),
    ] {
        assert_eq!(problem(&format!("{good}{row}\n{good}")), (3, expected), "{row}");
    }
    let error = parse(&format!("{HEADER}\n{good}1,2,X,4,5\n")).unwrap_err().to_string();
    assert_eq!(error, "trace dir/small.csv.zst, line 3: field op is 'X', expected R, W or 0");
}

#[test]
fn further_fields_are_accepted_if_the_first_line_names_them() {
    let more = format!("{HEADER},latency_us,served\n");
    let trace = parse(&format!("{more}7,3,W,512,512,90,pool\n9,3,R,0,512,,\n")).unwrap();
    let plain = parse(&format!("{HEADER}\n7,3,W,512,512\n9,3,R,0,512\n")).unwrap();
    assert_eq!(trace, plain);
    for row in ["7,3,W,512,512", "7,3,W,512,512,90", "7,3,W,512,512,90,pool,x"] {
        let Err(TraceError::Line { line: 2, problem, .. }) = parse(&format!("{more}{row}")) else {
            panic!("{row}");
        };
        let found = row.split(',').count();
        assert_eq!(problem, LineProblem::FieldCount { expected: 7, found });
    }
    assert!(parse(&format!("{HEADER}served\n7,3,W,512,512\n")).is_err());
}

#[test]
fn a_file_without_a_trace_is_rejected() {
    assert_eq!(problem(""), (1, LineProblem::NoRequests));
    for text in ["", "time,offset\n1,2\n"] {
        assert!(matches!(parse(text), Err(TraceError::Line { line: 1, .. })), "{text}");
    }
    let endless = "7".repeat(1 << 20);
    assert!(matches!(parse(&endless), Err(TraceError::Line { line: 1, .. })));
    let binary = Trace::parse(Path::new("b.csv"), [0xff, 0xfe, b'\n'].as_slice());
    let Err(TraceError::Line { problem: LineProblem::NotText, .. }) = binary else {
        panic!("{binary:?}");
    };
}

#[test]
fn a_missing_file_is_an_error_that_names_it() {
    let error = Trace::open(Path::new("no/such.csv.zst")).unwrap_err();
    assert!(error.to_string().starts_with("trace no/such.csv.zst: cannot be read"), "{error}");
}

fn trace_of(volume: u32, count: u64) -> Trace {
    let request = |i| Request {
        time_us: i,
        offset_bytes: i * LINE_BYTES,
        length_bytes: LINE_BYTES,
        volume,
        op: Op::Read,
    };
    Trace { name: format!("v{volume}"), requests: (0..count).map(request).collect() }
}

#[test]
fn a_mix_interleaves_its_parts_evenly() {
    let (long, short) = (trace_of(33, 4), trace_of(0, 2));
    let mixed = Trace::mix("both", &[&long, &short]);
    let order: Vec<_> = mixed.requests.iter().map(|r| (r.volume, *r.blocks().start())).collect();
    // Positions: 1/8 3/8 5/8 7/8 of the long one, 1/4 3/4 of the short one.
    assert_eq!(order, [(1, 0), (32, 0), (1, 1), (1, 2), (32, 1), (1, 3)]);

    let same = Trace::mix("ties", &[&trace_of(0, 3), &trace_of(0, 3)]);
    let volumes: Vec<_> = same.requests.iter().map(|r| r.volume).collect();
    assert_eq!(volumes, [0, 32, 0, 32, 0, 32], "the earlier part goes first");
}

#[test]
fn the_development_mix_names_a_missing_part() {
    let error = Trace::mix_dev(&[]).unwrap_err().to_string();
    assert!(error.contains("needs trace cloudphysics_2h"), "{error}");
}
