// Writes to a protected collection in mongosh; prints what it says. Every driver's script does the same. The database is
// the URI's.
function refused(write) {
  try {
    write();
    print('not refused');
  } catch (error) {
    const errors = error.writeErrors;
    if (errors) {
      const positions = [errors].flat().map((one) => one.index).join(',');
      print('refused', error.code, 'at', positions, 'inserted', error.result.insertedCount);
    } else {
      print('refused', error.code, error.message.includes('email_1 dup key') ? 'True' : 'False');
    }
  }
}

db.users.insertOne({ _id: 1, email: 'a@x' });
refused(() => db.users.insertOne({ _id: 2, email: 'a@x' }));
const many = [{ _id: 3, email: 'b@x' }, { _id: 4, email: 'a@x' }, { _id: 5, email: 'c@x' }];
refused(() => db.users.insertMany(many, { ordered: false }));
refused(() => db.users.updateOne({ _id: 3 }, { $set: { email: 'c@x' } }));
print('updated', db.users.updateOne({ _id: 3 }, { $set: { email: 'd@x' } }).modifiedCount);
print('before', db.users.findOneAndUpdate({ _id: 3 }, { $set: { email: 'e@x' } }).email);
db.users.replaceOne({ _id: 6 }, { email: 'f@x' }, { upsert: true });
print('deleted', db.users.deleteOne({ email: 'a@x' }).deletedCount);
db.users.insertOne({ _id: 7, email: 'a@x' });
print(db.users.find().sort({ _id: 1 }).toArray().map((user) => user.email).join(' '));
