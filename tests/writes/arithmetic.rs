//! The values that Keyward computes for `$inc`, `$mul`, `$min` and `$max`, with a server as the judge.

use bson::{Bson, Decimal128, Document, doc};
use keyward::command::arithmetic::ComputingOperator;
use keyward::constraint::compare;
use keyward::raw::{Doc, Element};
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng, rngs::StdRng};
use testbed::ReplicaSet;
use testkit::given;
use testkit::wire::Connection;

/// So many statements of each operator.
const STATEMENTS: usize = 4_000;
/// Of those, so many in one command.
const IN_ONE_COMMAND: usize = 500;

fn number(rng: &mut StdRng) -> Bson {
    match rng.random_range(0..4) {
        0 => Bson::Int32(*[0, 1, -1, 3, 10, i32::MAX, i32::MIN, rng.random()].choose(rng).unwrap()),
        1 => {
            let exact = 1_i64 << 53;
            let large = i64::from(rng.random::<i32>()) << rng.random_range(0..32);
            Bson::Int64(
                *[0, -1, 2, exact + 1, -exact - 1, i64::MAX, i64::MIN, large]
                    .choose(rng)
                    .unwrap(),
            )
        }
        2 => Bson::Double(double(rng)),
        _ => Bson::Decimal128(decimal(rng)),
    }
}

fn double(rng: &mut StdRng) -> f64 {
    let nines = 999_999.999_999_999_9;
    let text = format!("{}e{}", rng.random::<i32>(), rng.random_range(-20..20));
    let some = [
        0.0,
        -0.0,
        0.1,
        2.5,
        nines,
        1e300,
        f64::MAX,
        f64::from_bits(1),
        f64::NAN,
        f64::INFINITY,
    ];
    match rng.random_range(0..4) {
        0 => *some.choose(rng).unwrap(),
        1 => f64::from_bits(rng.random()),
        2 => text.parse().unwrap(),
        _ => rng.random_range(-10.0..10.0),
    }
}

fn decimal(rng: &mut StdRng) -> Decimal128 {
    let some = [
        "0",
        "-0",
        "0E+6111",
        "0.1",
        "2.50",
        "1E+6144",
        "-9.999999999999999999999999999999999E+6144",
        "1E-6176",
        "9999999999999999999999999999999999",
        "NaN",
        "-NaN",
        "Infinity",
        "-Infinity",
    ];
    let text = match rng.random_range(0..4) {
        0 => (*some.choose(rng).unwrap()).to_owned(),
        1 => format!("{}E{}", rng.random::<i32>(), rng.random_range(-10..10)),
        2 => format!(
            "{}E{}",
            rng.random_range(-(1_i128 << 110)..1 << 110),
            rng.random_range(-40..10)
        ),
        // Any bits: many of them encode no number in the usual way.
        _ => return Decimal128::from_bytes(rng.random()),
    };
    text.parse().unwrap()
}

/// A value that need not be a number.
fn value(rng: &mut StdRng) -> Bson {
    match rng.random_range(0..14) {
        0 => Bson::String(["", "a", "ab", "a\0", "é", "Z"].choose(rng).unwrap().to_string()),
        1 => Bson::Symbol("a".to_owned()),
        2 => Bson::Null,
        3 => Bson::Undefined,
        4 => Bson::MinKey,
        5 => Bson::Boolean(rng.random()),
        6 => Bson::DateTime(bson::DateTime::from_millis(rng.random_range(-2..3))),
        7 => Bson::ObjectId(bson::oid::ObjectId::from_bytes(rng.random())),
        8 => Bson::Array(vec![number(rng)]),
        9 => doc! { "x": number(rng) }.into(),
        _ => number(rng),
    }
}

/// A field's value, or none.
fn element<'d>(document: &'d [u8], name: &str) -> Option<Element<'d>> {
    Doc::new(document).unwrap().get(name).unwrap()
}

/// A statement about a document of its own, with the document as it was before.
struct Case {
    before: Document,
    operand: Bson,
}

#[test]
fn keyward_computes_what_the_server_computes() {
    let seed = given::seed();
    let mut rng = StdRng::seed_from_u64(seed);
    let mut connection = Connection::open(&ReplicaSet::shared().addresses()[0]);
    for name in ["$inc", "$mul", "$min", "$max"] {
        let operator = ComputingOperator::named(name.as_bytes()).unwrap();
        let mut computed = 0;
        for _ in 0..STATEMENTS / IN_ONE_COMMAND {
            let cases: Vec<Case> = (0..IN_ONE_COMMAND)
                .map(|id| case(&mut rng, i32::try_from(id).unwrap(), operator))
                .collect();
            computed += compare_with_server(&mut connection, name, operator, &cases);
        }
        assert!(computed * 2 > STATEMENTS, "only {computed} of {name} were computed");
    }
}

fn case(rng: &mut StdRng, id: i32, operator: ComputingOperator) -> Case {
    let is_arithmetic = matches!(operator, ComputingOperator::Add | ComputingOperator::Multiply);
    let mut before = doc! { "_id": id };
    if rng.random_bool(0.9) {
        before.insert(
            "v",
            if is_arithmetic && rng.random_bool(0.9) {
                number(rng)
            } else {
                value(rng)
            },
        );
    }
    loop {
        let operand = if is_arithmetic { number(rng) } else { value(rng) };
        let bytes = doc! { "v": operand.clone() }.to_vec().unwrap();
        if operator.takes(&element(&bytes, "v").unwrap()) {
            return Case { before, operand };
        }
    }
}

/// Compares the values; returns how many were computed.
fn compare_with_server(connection: &mut Connection, name: &str, operator: ComputingOperator, cases: &[Case]) -> usize {
    let (database, collection) = ("arithmetic", "values");
    let documents: Vec<Document> = cases.iter().map(|case| case.before.clone()).collect();
    connection.run(database, &doc! { "drop": collection });
    connection.must(database, &doc! { "insert": collection, "documents": documents });
    let update = |case: &Case| {
        let query = doc! { "_id": case.before.get("_id").unwrap() };
        doc! { "q": query, "u": { name: { "v": case.operand.clone() } } }
    };
    let updates: Vec<Document> = cases.iter().map(update).collect();
    let reply = connection.run(
        database,
        &doc! { "update": collection, "updates": updates, "ordered": false },
    );
    let errors = reply.get_array("writeErrors").cloned().unwrap_or_default();
    let is_refused = |id: usize| {
        let index = |error: &Bson| error.as_document().unwrap().get_i32("index").unwrap();
        errors.iter().any(|error| usize::try_from(index(error)).unwrap() == id)
    };
    let after = connection.all(database, collection);
    assert_eq!(after.len(), cases.len());
    let mut computed = 0;
    for (id, (case, after)) in cases.iter().zip(after).enumerate() {
        let (before, operand) = (
            case.before.to_vec().unwrap(),
            doc! { "v": case.operand.clone() }.to_vec().unwrap(),
        );
        let got = operator.apply(element(&before, "v").as_ref(), &element(&operand, "v").unwrap());
        let context = format!("{} {name} {}, of the server {after}", case.before, case.operand);
        let Some(got) = got else {
            assert!(is_refused(id), "{context}: the server computed it");
            continue;
        };
        assert!(
            !is_refused(id),
            "{context}: the server refused it, and here it is {got:?}"
        );
        computed += 1;
        let after = after.to_vec().unwrap();
        let expected = element(&after, "v").unwrap();
        let got_element = Element {
            kind: got.kind,
            name: b"v",
            value: &got.bytes,
        };
        assert_eq!(got.kind, expected.kind, "{context}: {got:?}");
        // A zero may have another sign, and a Decimal128 other zeros at its end.
        let ordering = compare(&got_element, &expected);
        assert_eq!(ordering, Some(std::cmp::Ordering::Equal), "{context}: {got:?}");
    }
    computed
}
